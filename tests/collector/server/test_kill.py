"""A server that is killed repeatedly under load: every acknowledged record is stored once."""

import random
import signal
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.property_examples import examples

from ltrain_collector.store import Store

KILLS = examples(15, change=4)
RECORDS = 8
"""Of a request."""
NOON = 1_790_000_000_000_000_000
TEXT = "x" * 2000


def spans(number: int) -> Message:
    request = ExportTraceServiceRequest()
    scoped = request.resource_spans.add().scope_spans.add()
    for place in range(1, RECORDS + 1):
        span = scoped.spans.add(name="chat", start_time_unix_nano=NOON)
        span.trace_id, span.span_id = number.to_bytes(16, "big"), place.to_bytes(8, "big")
        pairs = {"ltrain.rollout.id": f"r{number}", "input": TEXT}
        for key, value in pairs.items():
            span.attributes.add(key=key).value.string_value = value
    return request


def logs(number: int) -> Message:
    request = ExportLogsServiceRequest()
    scoped = request.resource_logs.add().scope_logs.add()
    for place in range(RECORDS):
        record = scoped.log_records.add(time_unix_nano=NOON + place)
        record.body.string_value = f"r{number}"
    return request


def metrics(number: int) -> Message:
    request = ExportMetricsServiceRequest()
    named = request.resource_metrics.add().scope_metrics.add().metrics
    for place in range(RECORDS):
        gauge = named.add(name=f"r{number}").gauge
        gauge.data_points.add(time_unix_nano=NOON + place, as_int=1)
    return request


SIGNALS: dict[str, tuple[Callable[[int], Message], str]] = {
    "traces": (spans, "SELECT RolloutId AS made, count() AS rows FROM otel.spans GROUP BY made"),
    "logs": (logs, "SELECT Body AS made, count() AS rows FROM otel.logs GROUP BY made"),
    "metrics": (
        metrics,
        "SELECT MetricName AS made, count() AS rows FROM otel.metrics_gauge "
        "WHERE MetricName LIKE 'r%' GROUP BY made",
    ),
}
"""By signal: what makes a request with a number, and SQL that counts the rows by number."""


class Client(threading.Thread):
    """Sends requests one after another, each until it is acknowledged, as an exporter does."""

    def __init__(self, name: str, first: int, port: int, pause: float) -> None:
        super().__init__(name=name)
        self.pause = pause
        self.acknowledged: set[str] = set()
        self.retries = 0
        self.stopped = threading.Event()
        self._number, self._port = first, port

    def run(self) -> None:
        make, _ = SIGNALS[self.name]
        while not self.stopped.is_set():
            self._number += 1
            body = make(self._number).SerializeToString()
            while not self._deliver(body):
                self.retries += 1
                time.sleep(0.05)
            self.acknowledged.add(f"r{self._number}")
            time.sleep(self.pause)

    def _deliver(self, body: bytes) -> bool:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            kind = {"Content-Type": "application/x-protobuf"}
            connection.request("POST", f"/v1/{self.name}", body, kind)
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()


def begin(port: int, pause: float = 0) -> list[Client]:
    """Let two clients of each signal send, with a pause after each response."""
    clients = [
        Client(name, (2 * place + twin) * 1_000_000, port, pause)
        for place, name in enumerate(SIGNALS)
        for twin in (0, 1)
    ]
    for client in clients:
        client.start()
    return clients


def end(clients: list[Client]) -> dict[str, set[str]]:
    """Wait for the senders, and return the acknowledged requests of each signal."""
    for client in clients:
        client.stopped.set()
    for client in clients:
        client.join()
    return {
        name: {one for client in clients if client.name == name for one in client.acknowledged}
        for name in SIGNALS
    }


def rows(store: Store) -> dict[str, dict[str, int]]:
    """Return the rows of each request, by signal."""
    return {name: dict(store.query(sql).iter_rows()) for name, (_, sql) in SIGNALS.items()}


def test_kill_9_loses_nothing_and_duplicates_nothing(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    up = start(tmp_path / "store")
    clients = begin(up.otlp)
    for _ in range(KILLS):
        time.sleep(random.uniform(0.05, 0.8))
        up.stop(signal.SIGKILL)
        up = start(tmp_path / "store", up.otlp, up.sql)
    acknowledged = end(clients)
    assert sum(client.retries for client in clients) >= KILLS
    with Store.open(up.dsn) as store:
        found = rows(store)
        traces = store.query("SELECT RolloutId, count() FROM otel.trace_executions GROUP BY ALL")
    assert found == {name: dict.fromkeys(made, RECORDS) for name, made in acknowledged.items()}
    assert dict(traces.iter_rows()) == dict.fromkeys(acknowledged["traces"], 1)
