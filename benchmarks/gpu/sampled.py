"""Yields the sampled tokens a second of 1, 32 and 256 calls, through the gateway and beside it."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.gpu.serving import Served, served
from benchmarks.gpu.stage import Check, Row
from benchmarks.support.servers import AGENTS

from ltrain_train.policy import read_config

CALLS = (1, 32, 256)
"""Calls at the same time."""
TOKENS, ROUNDS = 256, 2
"""Most tokens of a call, and calls that each client makes."""
RATE, SHARE = 20_000, 0.9
"""Least tokens a second of the most calls through the gateway, and least part of vLLM alone."""


def rows(check: Check, _: str) -> Iterator[Row]:
    """Yield the rates; each number of calls is made beside the gateway, then through it."""
    model = check.policy_model()
    vocabulary = int(read_config(model)["vocab_size"])
    counts, tokens = ((1, 4), 16) if check.quick else (CALLS, TOKENS)
    began = time.monotonic()
    with served(check, model) as servers:
        yield Row("ready", time.monotonic() - began, "s")
        rate(servers, True, counts[-1], 16, vocabulary)  # the first calls compile kernels
        for count in counts:
            most = count == counts[-1]
            beside, through = (rate(servers, it, count, tokens, vocabulary) for it in (False, True))
            name = f"{count} calls" if count > 1 else "1 call"
            yield Row(f"{name}, vLLM alone", beside, "tokens/s")
            bar, share = (check.bar(RATE), check.bar(SHARE)) if most else (None, None)
            yield Row(f"{name}, through the gateway", through, "tokens/s", at_least=bar)
            yield Row(f"{name}, by vLLM alone", through / beside, at_least=share)


def rate(servers: Served, through: bool, clients: int, tokens: int, vocabulary: int) -> float:
    """Return the tokens a second of clients in a process of their own."""
    address = servers.attempt if through else str(servers.socket)
    numbers = map(str, (clients, ROUNDS, tokens, vocabulary))
    command = [sys.executable, str(AGENTS / "sampling.py"), address, servers.key, *numbers]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result = json.loads(done.stdout)
    return float(result["tokens"] / result["seconds"])
