"""Latency of SELECT 1, ingest and SIGTERM beside six endless queries of another key."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from statistics import median

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ltrain_collector.access import Keys, Role

SECONDS = 8.0
"""Duration of each measurement."""
ROUNDS = 3
"""Number of measurements without and with the endless queries, which alternate."""
WARM_UP = 2.0
"""Seconds before a measurement, in which clients and queries start."""
ENDLESS = (
    "SELECT count() FROM system.numbers WHERE sipHash64(number) = 1",
    "SELECT count() FROM system.numbers AS a, numbers(10000) AS b WHERE a.number + b.number = 1",
    "SELECT count() FROM system.numbers AS a, otel.spans WHERE sipHash64(a.number, SpanId) = 1",
    "SELECT number % 100000 AS n, count() FROM system.numbers GROUP BY n",
    "SELECT max(cityHash64(repeat('x', number % 1000))) FROM system.numbers",
    "SELECT count() FROM system.numbers WHERE match(toString(number), '(7.*){3}(9.*){2}$')",
)
CLIENTS = 4
PACE = 0.1
"""Seconds between the starts of two requests of an exporter."""
SPANS = 32
"""Spans of one request."""
MAX_WAIT, MAX_RATIO, MAX_STOP = 1.0, 2.0, 10.0
"""Limits: seconds of SELECT 1, ratio of the median of ingest, seconds of SIGTERM."""


def request() -> bytes:
    """Make a request of `SPANS` spans."""
    message = ExportTraceServiceRequest()
    scoped = message.resource_spans.add().scope_spans.add()
    for number in range(1, SPANS + 1):
        span = scoped.spans.add(name="chat", start_time_unix_nano=time.time_ns())
        span.trace_id, span.span_id = os.urandom(16), number.to_bytes(8, "big")
        span.attributes.add(key="input").value.string_value = os.urandom(700).hex()
    return bytes(message.SerializeToString())


def post(port: int, path: str, body: bytes, key: str) -> tuple[int, float]:
    """Send a request; return its status and the seconds until its answer."""
    start = time.perf_counter()
    connection = HTTPConnection("127.0.0.1", port, timeout=600)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/x-protobuf"}
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status, time.perf_counter() - start
    finally:
        connection.close()


@dataclass
class Latencies:
    """Seconds until answers."""

    ingest: list[float] = field(default_factory=list)
    query: list[float] = field(default_factory=list)

    def summary(self, queries: int) -> dict[str, float]:
        """Return median, 95th percentile and maximum."""
        return {
            "queries": queries,
            "requests": len(self.ingest),
            "ingest_p50_s": round(median(self.ingest), 4),
            "ingest_p95_s": round(sorted(self.ingest)[len(self.ingest) * 95 // 100], 4),
            "select_1_p50_s": round(median(self.query), 4),
            "select_1_max_s": round(max(self.query), 4),
        }


@dataclass(frozen=True)
class Server:
    """A running `ltrain up`."""

    otlp: int
    sql: int
    ingest: str
    query: str
    greedy: str
    """Keys; the last one is for the endless queries."""

    def measure(self, latencies: Latencies, seconds: float) -> None:
        """Add the latencies of ingest and of SELECT 1 during `seconds`."""
        ended = time.monotonic() + seconds

        def repeat(
            port: int, path: str, body: Callable[[], bytes], key: str, to: list[float]
        ) -> None:
            while time.monotonic() < ended:
                status, wait = post(port, path, body(), key)
                if status != 200:
                    raise SystemExit(f"A request to {path} was answered with {status}.")
                to.append(wait)
                time.sleep(max(0.0, PACE - wait))

        export = (self.otlp, "/v1/traces", request, self.ingest, latencies.ingest)
        select = (self.sql, "/", lambda: b"SELECT 1", self.query, latencies.query)
        work = (*[export] * CLIENTS, select)
        threads = [threading.Thread(target=repeat, args=arguments) for arguments in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @contextmanager
    def endless(self) -> Iterator[None]:
        """Start the endless queries, and disconnect at the end."""
        connections = [HTTPConnection("127.0.0.1", self.sql) for _ in ENDLESS]
        for connection, sql in zip(connections, ENDLESS, strict=True):
            connection.request("POST", "/", sql, {"Authorization": f"Bearer {self.greedy}"})
        time.sleep(WARM_UP)
        yield
        for connection in connections:
            connection.close()
        time.sleep(WARM_UP)


def stop(server: subprocess.Popen[str]) -> float:
    """Terminate the server and return the seconds that it took."""
    start = time.perf_counter()
    server.terminate()
    server.wait(120)
    return time.perf_counter() - start


def run(place: Path, seconds: float) -> tuple[Latencies, Latencies, float]:
    """Return the latencies without and with the endless queries, and the seconds of SIGTERM."""
    store = Keys(place / "store")
    keys = [store.make_key(role)[0] for role in (Role.INGEST, Role.QUERY, Role.QUERY)]
    ports = ["--otlp-port", "0", "--grpc-port", "0", "--http-port", "0"]
    argv = [sys.executable, "-m", "ltrain", "up", "--dir", str(place / "store"), *ports]
    alone, beside = Latencies(), Latencies()
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        otlp, _, sql = map(int, re.findall(r"[\d.]+\.\d+:(\d+)", process.stdout.readline()))
        server = Server(otlp, sql, *keys)
        try:
            server.measure(Latencies(), WARM_UP)
            for _ in range(ROUNDS):
                server.measure(alone, seconds)
                with server.endless():
                    server.measure(beside, seconds)
            with server.endless():
                seconds_to_stop = stop(process)
        finally:
            process.kill()
    return alone, beside, seconds_to_stop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="ltrain-fair-") as name:
        alone, beside, seconds_to_stop = run(Path(name), seconds)
    before, after = alone.summary(0), beside.summary(len(ENDLESS))
    print(json.dumps(before))
    print(json.dumps(after))
    ratio = round(after["ingest_p50_s"] / before["ingest_p50_s"], 2)
    slowest = after["select_1_max_s"]
    result = {
        "name": "fair",
        "value": slowest,
        "unit": f"s of the slowest SELECT 1 beside {len(ENDLESS)} endless queries of another key, "
        f"at most {MAX_WAIT:g}; ingest's median at most {MAX_RATIO:g} times its own; SIGTERM ends "
        f"the server in {MAX_STOP:g} s",
        "peer": None,
        "ratio": None,
        "ingest_p50_ratio": ratio,
        "sigterm_s": round(seconds_to_stop, 2),
    }
    print(json.dumps(result))
    sys.exit(slowest > MAX_WAIT or ratio > MAX_RATIO or seconds_to_stop > MAX_STOP)


if __name__ == "__main__":
    main()
