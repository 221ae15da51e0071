"""Yields how far served log-probabilities are from the learner's, before and after an update."""

import json
import struct
import time
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import polars as pl
from benchmarks.gpu.exactness import distances
from benchmarks.gpu.serving import POLICY, Served, served
from benchmarks.gpu.stage import Check, Row
from benchmarks.learner import write_table
from benchmarks.publications import SPANS_SQL
from benchmarks.step import NO_DRIFT_LIMIT
from benchmarks.support.call_spans import read_spans

from ltrain_train.learner import LearnerClient, Objective
from ltrain_transforms.recipe import Train

SEQUENCES, TOKENS = 64, 128
RATE = 1e-4
"""Learning rate of the update: it changes log-probabilities by more than bf16 rounds."""
MICRO_BATCH = 4_096
BAR = 0.02
"""Most mean difference of a log-probability, in bf16 or better."""


def rows(check: Check, _: str) -> Iterator[Row]:
    """Yield the differences of version 0, the seconds of a transfer, those of version 1."""
    model = check.policy_model()
    count = 8 if check.quick else SEQUENCES
    train = Train(
        lora_rank=0,
        learning_rate=RATE,
        tokens_per_micro_batch=MICRO_BATCH,
        drift_warning=NO_DRIFT_LIMIT,
        drift_limit=NO_DRIFT_LIMIT,
    )
    with (
        served(check, model) as servers,
        LearnerClient(train, model, directory=check.folder, policy=POLICY) as learner,
    ):
        first = sample(servers, check, count, version=0)
        before = learner.log_probs(first)
        yield from compare("version 0", before, first)
        learner.step(first, Objective.from_train(train), version=0)
        change = next(distances("", learner.log_probs(first), before, BAR))
        yield Row("change by the update, mean", change.value, "nats")
        yield from transfer(servers, learner, check.folder / "exported")
        second = sample(servers, check, count, version=1)
        yield from compare("version 1", learner.log_probs(second), second)


def compare(name: str, computed: list[list[float]], samples: Path) -> Iterator[Row]:
    """Yield the differences of the learner's log-probabilities from those of the samples."""
    recorded = pl.read_parquet(samples)["rollout_logprobs"].to_list()
    yield Row(f"tokens of {name}", sum(map(len, recorded)), at_least=1)
    yield from distances(f"of {name}", computed, recorded, BAR)


def transfer(servers: Served, learner: LearnerClient, folder: Path) -> Iterator[Row]:
    """Make the learner's weights the served version 1, and yield the seconds."""
    began = time.monotonic()
    learner.export(folder)
    servers.policies.add(POLICY, folder, parent=0)
    yield Row("write the weights", time.monotonic() - began, "s")
    yield Row("calls waited for the weights", servers.client.load(POLICY, 1), "s")


def sample(servers: Served, check: Check, count: int, version: int) -> Path:
    """Sample answers through the gateway, and return their rows, made from their spans."""
    words = " ".join(f"w{number}" for number in range(9))
    text = words if check.quick else "Write a short story about a ship, a map and a cook."

    def ask(number: int) -> None:
        messages = [{"role": "user", "content": f"{text} w{number}"}]
        body = {"model": POLICY, "messages": messages, "max_tokens": 16 if check.quick else TOKENS}
        headers = {"authorization": f"Bearer {servers.key}"}
        url = f"{servers.attempt}/chat/completions"
        httpx.post(url, json=body, headers=headers, timeout=300).raise_for_status()

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(ask, range(count)))
    spans = read_spans(servers.store, SPANS_SQL, count * (version + 1))
    spans = spans.filter(pl.col("version") == version)
    if spans.height != count:
        raise SystemExit(f"{count} calls of version {version} were made; {spans.height} are stored")
    return write_rows(spans, check.folder / f"version-{version}.parquet")


def write_rows(spans: pl.DataFrame, path: Path) -> Path:
    """Write the rows of spans, with random advantages, and return the path."""
    packed = [b64decode(text) for text in spans["logprobs"]]
    logprobs = [list(struct.unpack(f"<{len(each) // 4}f", each)) for each in packed]
    count = spans.height
    values = np.random.default_rng(0).normal(size=count)
    advantages = [[value] * len(row) for value, row in zip(values, logprobs, strict=True)]
    frame = pl.DataFrame(
        {
            "sample_id": [f"s{number}" for number in range(count)],
            "policy": POLICY,
            "tokens": "sampled",
            "prompt_ids": [json.loads(text) for text in spans["prompt"]],
            "response_ids": [json.loads(text) for text in spans["response"]],
            "response_mask": [[1] * len(row) for row in logprobs],
            "rollout_logprobs": logprobs,
            "advantages": advantages,
            "token_rewards": advantages,
            "loss_weight": [[1 / len(row)] * len(row) for row in logprobs],
            "temperature": 1.0,
            "call_versions": [[version] for version in spans["version"]],
            "call_offsets": [[0]] * count,
        },
        strict=False,
    )
    write_table(frame, path)
    return path
