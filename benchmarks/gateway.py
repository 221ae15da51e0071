"""What the gateway adds to a call: CPU milliseconds, latency and calls per second, beside a peer.

The policy server answers at once with 1,024 prompt ids and 128 sampled tokens with
log-probabilities. The calls are those of a rollout; their spans are stored by `ltrain up`. With
`--peer PYTHON`, an interpreter with `rllm-model-gateway==0.1.0`, that gateway does the same work in
the same run, with its traces in SQLite.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from statistics import median

from benchmarks.support.process_cost import idle_cpu_seconds
from benchmarks.support.servers import AGENTS, Stack, ltrain, policy_server

from ltrain_collector.access import AttemptKey
from ltrain_collector.store import Store
from ltrain_instrument.clock import Deadline
from ltrain_instrument.identity import Identity
from ltrain_train.store import home_secret

RUNS = 3
CALLS = 600
"""Calls of one client."""
MANY = 32
"""Clients at the same time."""
CALLS_OF_MANY = 150
"""Calls of each of them."""
WARM_UP = 4
STREAMS = 40
"""Streams of one client."""
CHUNKS = 128
"""Chunks of a stream that have a token."""
MAX = {
    "cpu_ms": 0.8,
    "added_ms": 0.6,
    "stream_first_token_added_ms": 1.0,
    "burst_cpu_ms_a_chunk": 0.05,
}
"""Limits: CPU milliseconds of a call, milliseconds added at the median with one client and until
the first token of a stream, and CPU milliseconds of a chunk if all arrive at once."""
MIN_RATE, MIN_RATIO = 1000, 5
"""Limits: calls per second of many clients, and their ratio to those of the peer."""


@dataclass(frozen=True)
class Target:
    """A server that clients call."""

    url: str
    key: str
    process: str | None
    """Its folder in /proc; None if its CPU time is not measured."""


@dataclass(frozen=True)
class Measured:
    """One run of clients."""

    cpu_ms: float
    """CPU milliseconds of the server for a call."""
    median_ms: float
    first_ms: float
    """Median milliseconds until the first token of a stream; 0 for complete responses."""
    rate: float
    """Calls per second."""


def measure(target: Target, clients: int, calls: int, kind: str = "complete") -> Measured:
    """Let clients call the target."""
    before = idle_cpu_seconds(target.process) if target.process else 0.0
    arguments = (target.url, target.key, str(clients), str(calls), kind)
    command = [sys.executable, str(AGENTS / "clients.py"), *arguments]
    result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    spent = idle_cpu_seconds(target.process) - before if target.process else 0.0
    count = len(result["seconds"])
    return Measured(
        cpu_ms=1e3 * spent / count,
        median_ms=1e3 * median(result["seconds"]),
        first_ms=1e3 * median(result["first_token"] or [0.0]),
        rate=count / result["total"],
    )


def attempt_of(stack: Stack) -> Target:
    """Return the target of an attempt."""
    identity = Identity(run="bench", task="t", rollout="r1", attempt=1, mode="train")
    expires = Deadline.after(3600)
    claims = AttemptKey(identity=identity, policy="policy", sampling={}, expires=expires)
    key = claims.sign(home_secret(Path(stack.environment["LTRAIN_HOME"])))
    return Target(f"{stack.gateway}/rollout/r1/attempt/1/v1", key, stack.gateway_process)


@contextmanager
def peer(python: str, place: Path, upstream: str) -> Iterator[Target]:
    """Start rllm-model-gateway, and yield a session's target."""
    port = "18473"
    command = [python, "-m", "rllm_model_gateway", "--port", port, "--log-level", "warning"]
    command += ["--worker", f"{upstream}/v1", "--store", "sqlite", "--db-path", str(place / "db")]
    process = subprocess.Popen(command, cwd=place)
    try:
        until = time.monotonic() + 60
        while not _answers(int(port)):
            if time.monotonic() > until or process.poll() is not None:
                raise SystemExit("rllm-model-gateway does not start")
            time.sleep(0.2)
        yield Target(f"http://127.0.0.1:{port}/sessions/s1/v1", "none", f"/proc/{process.pid}")
    finally:
        process.terminate()
        process.wait(60)


def _answers(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def stored_calls(sql: str, calls: int) -> None:
    """Check that the store has the span of each call, with its tokens."""
    query = (
        "SELECT count() AS n FROM otel.spans WHERE GenAiOp = 'chat' "
        "AND length(SpanAttributes['ltrain.response_token_ids']) > 128"
    )
    until = time.monotonic() + 60
    with Store.open(sql) as store:
        while (found := store.query(query)["n"][0]) != calls:
            if time.monotonic() > until:
                raise SystemExit(f"{calls} calls were made and {found} are stored")
            time.sleep(0.5)


def middle(runs: list[Measured], value: Callable[[Measured], float]) -> float:
    """Return the median of the runs."""
    return round(median(map(value, runs)), 3)


def measure_all(targets: Mapping[str, Target]) -> dict[tuple[str, str], list[Measured]]:
    """Measure each target in turn, so that other load affects all of them."""
    runs: dict[tuple[str, str], list[Measured]] = defaultdict(list)
    for target in targets.values():
        measure(target, MANY, WARM_UP)
    for _ in range(RUNS):
        for name, target in targets.items():
            runs[name, "one"].append(measure(target, 1, CALLS))
            runs[name, "many"].append(measure(target, MANY, CALLS_OF_MANY))
            if name != "rllm":
                runs[name, "stream"].append(measure(target, 1, STREAMS, "stream"))
                runs[name, "burst"].append(measure(target, 1, STREAMS, "burst"))
    return runs


CALLS_MADE = MANY * WARM_UP + RUNS * (CALLS + MANY * CALLS_OF_MANY + 2 * STREAMS)


def figures(runs: Mapping[tuple[str, str], list[Measured]], name: str) -> dict[str, float]:
    """Return the medians of a server."""
    return {
        "cpu_ms": middle(runs[name, "many"], lambda run: run.cpu_ms),
        "cpu_ms_one_client": middle(runs[name, "one"], lambda run: run.cpu_ms),
        "median_ms": middle(runs[name, "one"], lambda run: run.median_ms),
        "calls_a_second": round(middle(runs[name, "many"], lambda run: run.rate)),
    }


def added(runs: Mapping[tuple[str, str], list[Measured]]) -> dict[str, float]:
    """Return what ltrain adds to a call and to a stream."""

    def difference(kind: str, value: Callable[[Measured], float]) -> float:
        return round(middle(runs["ltrain", kind], value) - middle(runs["direct", kind], value), 3)

    def chunk(kind: str) -> float:
        return round(middle(runs["ltrain", kind], lambda run: run.cpu_ms) / CHUNKS, 4)

    return {
        "added_ms": difference("one", lambda run: run.median_ms),
        "stream_first_token_added_ms": difference("stream", lambda run: run.first_ms),
        "stream_cpu_ms_a_chunk": chunk("stream"),
        "burst_cpu_ms_a_chunk": chunk("burst"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="an interpreter with rllm-model-gateway==0.1.0")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ltrain-gateway-")))
        upstream = stack.enter_context(policy_server())
        ours = stack.enter_context(ltrain(place, upstream))
        targets = {"direct": Target(f"{upstream}/v1", "none", None), "ltrain": attempt_of(ours)}
        if arguments.peer:
            targets["rllm"] = stack.enter_context(peer(arguments.peer, place, upstream))
        runs = measure_all(targets)
        stored_calls(ours.store, CALLS_MADE)
    for name in targets:
        print(json.dumps({"server": name, **figures(runs, name)}))
    results = {**figures(runs, "ltrain"), **added(runs)}
    other = figures(runs, "rllm")["calls_a_second"] if arguments.peer else None
    ratio = round(results["calls_a_second"] / other, 2) if other else None
    result = {
        "name": "gateway",
        "value": results["cpu_ms"],
        "unit": f"CPU ms of the gateway for a call, at most {MAX['cpu_ms']}; calls/s of {MANY} "
        f"clients at least {MIN_RATE}, and at least {MIN_RATIO} times those of the peer; "
        f"other limits: {MAX}",
        "peer": other,
        "ratio": ratio,
        **results,
        "stored_calls": CALLS_MADE,
    }
    print(json.dumps(result))
    met = all(results[name] <= limit for name, limit in MAX.items())
    met = met and results["calls_a_second"] >= MIN_RATE
    sys.exit(not (met and (ratio is None or ratio >= MIN_RATIO)))


if __name__ == "__main__":
    main()
