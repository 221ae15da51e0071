"""Writers, readers and prunes in parallel for minutes: errors, lost and duplicate rows, memory."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import median
from typing import Any

import clickhouse_connect
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ltrain_collector.access import sign_owner, store_secret
from ltrain_collector.admin import PruneFilter, days_ago, prune
from ltrain_collector.schema import ROLLOUT_ORDER
from ltrain_collector.store import Store

SECONDS = 300
PRUNE = 30
"""Seconds between two prunes."""
OLD = 90
"""Age of every second rollout in days; rollouts older than a third of it are pruned."""
RECORDS = 32
"""Records of one request."""
PACE = 0.1
"""Seconds between two requests of a writer."""
DUPLICATE_EVERY = 5
"""Every fifth request is sent twice, as by a client that did not receive the first answer."""
MAX_GROWTH = 1.25
"""Limit of the memory at the end over that at minute 1; both are medians of a tenth of the time."""
DAY = 86_400 * 10**9
VIEWS = {
    "traces": ("spans", "SpanId"),
    "logs": ("logs", "Body"),
    "metrics": ("metrics_gauge", "Value"),
}
"""For each signal its view, and the column that distinguishes the records of one request."""


@dataclass
class Soak:
    """The state and the results of the soak test."""

    otlp: int
    dsn: str
    pid: int
    ended: threading.Event = field(default_factory=threading.Event)
    stored: dict[str, set[str]] = field(default_factory=lambda: {name: set() for name in VIEWS})
    """For each signal the names of the stored requests; the names of old ones begin with `old`."""
    errors: list[str] = field(default_factory=list)
    retries: int = 0
    queries: int = 0
    pruned: int = 0
    memory: list[float] = field(default_factory=list)
    """MB of the server, once per second."""

    def make_thread(self, work: Callable[[], None]) -> threading.Thread:
        """Return a thread that repeats `work` until the end and records its errors."""

        def run() -> None:
            while not self.ended.is_set():
                try:
                    work()
                except Exception as error:  # broad: every error counts
                    self.errors.append(f"{type(error).__name__}: {error}"[:300])
                    self.ended.wait(1)

        return threading.Thread(target=run)


def request(signal: str, name: str, number: int, start: int) -> bytes:
    """Make a request of `RECORDS` records of rollout `name`."""
    at = start - (OLD * DAY if name.startswith("old") else 0) + number * 10**6
    kinds: dict[str, Any] = {
        "traces": ExportTraceServiceRequest,
        "logs": ExportLogsServiceRequest,
        "metrics": ExportMetricsServiceRequest,
    }
    message = kinds[signal]()
    resource = getattr(message, f"resource_{'spans' if signal == 'traces' else signal}").add()
    attributes = {"service.name": "soak", "ltrain.run.id": "soak", "ltrain.rollout.id": name}
    for key, text in attributes.items():
        resource.resource.attributes.add(key=key).value.string_value = text
    scoped = getattr(resource, f"scope_{'spans' if signal == 'traces' else signal}").add()
    if signal == "metrics":
        points = scoped.metrics.add(name=name).gauge.data_points
    for record in range(1, RECORDS + 1):
        if signal == "traces":
            span = scoped.spans.add(name="chat", start_time_unix_nano=at, end_time_unix_nano=at + 1)
            span.trace_id, span.span_id = os.urandom(16), record.to_bytes(8, "big")
            span.attributes.add(key="input").value.string_value = os.urandom(700).hex()
        elif signal == "logs":
            log = scoped.log_records.add(time_unix_nano=at)
            log.body.string_value = str(record)
        else:
            points.add(time_unix_nano=at + record, as_double=record)
    return bytes(message.SerializeToString())


def write(soak: Soak, signal: str, writer: int) -> Callable[[], None]:
    """Return a function that sends one request until it is stored, and every fifth one twice."""
    start, sent = time.time_ns(), 0

    def work() -> None:
        nonlocal sent
        sent += 1
        name = f"{'old' if sent % 2 else 'new'}-{signal}-{writer}-{sent}"
        body = request(signal, name, sent, start)
        for _ in range(1 + (sent % DUPLICATE_EVERY == 0)):
            while not deliver(soak, signal, body):
                if soak.ended.is_set():
                    return
                soak.retries += 1
                time.sleep(0.2)
        soak.stored[signal].add(name)
        soak.ended.wait(PACE)

    return work


def deliver(soak: Soak, signal: str, body: bytes) -> bool:
    """Send a request and return whether it is stored.

    Raises:
        ValueError: when the collector refuses it.
    """
    connection = HTTPConnection("127.0.0.1", soak.otlp, timeout=30)
    try:
        kind = {"Content-Type": "application/x-protobuf"}
        connection.request("POST", f"/v1/{signal}", body, kind)
        answer = connection.getresponse()
        content = answer.read()
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
    if answer.status not in (200, 503):
        raise ValueError(f"{answer.status} {content!r}")
    return answer.status == 200


def readers(soak: Soak, store: Store) -> list[Callable[[], None]]:
    """Return readers of frames, of streams of whole rollouts, and with another client library."""
    client = clickhouse_connect.get_client(dsn=soak.dsn)
    newest = "Timestamp > now() - INTERVAL 1 DAY"

    def query_views() -> None:
        for view in ("rollouts", "token_use", "collector_health"):
            store.query(f"SELECT * FROM otel.{view}")
        store.query("SELECT RolloutId, count() FROM otel.spans GROUP BY 1")
        rest(4)

    def stream_rollouts() -> None:
        before = ""
        for frame in store.stream(f"SELECT * FROM otel.spans WHERE {newest} {ROLLOUT_ORDER}"):
            if frame["RolloutId"][0] < before:
                raise ValueError("Rollouts came out of their order.")
            before = frame["RolloutId"][-1]
        rest(1)

    def query_with_client() -> None:
        client.query("SELECT count() FROM otel.logs WHERE RunId = 'soak'")
        with client.query_row_block_stream(f"SELECT * FROM otel.spans WHERE {newest}") as blocks:
            for _ in blocks:
                pass
        rest(2)

    def rest(queries: int) -> None:
        soak.queries += queries
        soak.ended.wait(0.5)

    return [query_views, stream_rollouts, query_with_client]


def remove(soak: Soak, store: Store, every: float) -> None:
    """Prune the old rollouts after `every` seconds."""
    if soak.ended.wait(every):
        return
    choice = PruneFilter(before=days_ago(OLD / 3))
    soak.pruned += sum(part.rows for part in prune(store, choice, delete=True))


def measure(soak: Soak) -> None:
    """Record the memory of the server."""
    pages = int(Path(f"/proc/{soak.pid}/statm").read_text().split()[1])
    soak.memory.append(pages * 4096 / 1e6)
    soak.ended.wait(1)


def count_records(store: Store, stored: dict[str, set[str]]) -> tuple[int, int, int]:
    """Return the numbers of lost records, of duplicates, and of all records in the store."""
    lost = doubled = there = 0
    for signal, (view, key) in VIEWS.items():
        name = "MetricName" if signal == "metrics" else "ResourceAttributes['ltrain.rollout.id']"
        sql = (
            f"SELECT {name} AS name, count() AS n, uniqExact({key}) AS once FROM otel.{view} "
            "WHERE ServiceName = 'soak' GROUP BY name"
        )
        counts = {name: (n, once) for name, n, once in store.query(sql).rows()}
        there += sum(n for n, _ in counts.values())
        doubled += sum(n - once for n, once in counts.values())
        for name in stored[signal]:
            if name.startswith("new"):
                lost += RECORDS - counts.get(name, (0, 0))[1]
    return lost, doubled, there


def run(soak: Soak, seconds: float, every: float) -> dict[str, object]:
    """Run all threads for `seconds` and return the results."""
    with Store.open(soak.dsn) as store:
        writing = [("traces", 1), ("traces", 2), ("logs", 3), ("metrics", 4)]
        work = [*(write(soak, *each) for each in writing), *readers(soak, store)]
        work += [lambda: measure(soak), lambda: remove(soak, store, every)]
        threads = [soak.make_thread(function) for function in work]
        for thread in threads:
            thread.start()
        try:
            time.sleep(seconds)
        finally:
            soak.ended.set()
            for thread in threads:
                thread.join()
        lost, doubled, there = count_records(store, soak.stored)
    tenth = max(1, len(soak.memory) // 10)
    first = min(60, len(soak.memory) // 2)
    return {
        "errors": len(soak.errors),
        "lost": lost,
        "doubled": doubled,
        "stored": RECORDS * sum(map(len, soak.stored.values())),
        "pruned": soak.pruned,
        "there": there,
        "retries": soak.retries,
        "queries": soak.queries,
        "mb_at_minute_1": round(median(soak.memory[first : first + tenth])),
        "mb_at_the_end": round(median(soak.memory[-tenth:])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        ports = ["--otlp-port", "0", "--grpc-port", "0", "--http-port", "0"]
        argv = [sys.executable, "-m", "ltrain", "up", "--dir", f"{directory}/store", *ports]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout
            otlp, _, sql = re.findall(r"[\d.]+\.\d+:(\d+)", server.stdout.readline())
            key = sign_owner(store_secret(Path(directory, "store")), arguments.seconds + 3600)
            soak = Soak(int(otlp), f"http://owner:{key}@127.0.0.1:{sql}", server.pid)
            try:
                results = run(soak, arguments.seconds, PRUNE)
            finally:
                server.terminate()
    for error in soak.errors[:20]:
        print(error)
    last, first = results["mb_at_the_end"], results["mb_at_minute_1"]
    assert isinstance(last, int) and isinstance(first, int)
    ratio = round(last / first, 3)
    summary = {
        "name": "soak",
        "value": last,
        "unit": f"MB of the server after {arguments.seconds:g} s, at most {MAX_GROWTH:g} of "
        "minute 1; no error, nothing lost, nothing doubled",
        "peer": first,
        "ratio": ratio,
        **results,
    }
    print(json.dumps(summary))
    failed = results["errors"] or results["lost"] or results["doubled"]
    sys.exit(bool(failed) or ratio > MAX_GROWTH)


if __name__ == "__main__":
    main()
