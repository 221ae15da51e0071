import random
import signal
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from ltrain_collector.store import Store

KILLS = 3
CLIENTS = 4
SPANS = 8


class Client(threading.Thread):
    """Sends requests one after another, each until it is acknowledged, as an exporter does."""

    def __init__(self, number: int, port: int, request_of: Callable[..., bytes]) -> None:
        super().__init__()
        self.number = number
        self.port = port
        self.request_of = request_of
        self.stopped = threading.Event()
        self.acknowledged: list[str] = []
        self.retries = 0

    def run(self) -> None:
        trace = 0
        while not self.stopped.is_set():
            trace += 1
            ids = [(self.number * 1_000_000 + trace, span) for span in range(1, SPANS + 1)]
            body = self.request_of(*ids, ltrain__rollout__id="kill", input="x" * 2000)
            while not self.deliver(body):
                self.retries += 1
                time.sleep(0.05)
            self.acknowledged.append(f"{ids[0][0]:032x}")

    def deliver(self, body: bytes) -> bool:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            kind = {"Content-Type": "application/x-protobuf"}
            connection.request("POST", "/v1/traces", body, kind)
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()


def test_kill_9_loses_nothing_and_doubles_nothing(
    start: Callable[..., Any], request_of: Callable[..., bytes], tmp_path: Path
) -> None:
    up = start(tmp_path / "store")
    clients = [Client(number, up.otlp, request_of) for number in range(1, CLIENTS + 1)]
    for client in clients:
        client.start()
    for _ in range(KILLS):
        time.sleep(0.3 + random.random() * 0.5)
        up.stop(signal.SIGKILL)
        up = start(tmp_path / "store", up.otlp, up.sql)
    time.sleep(0.3)
    for client in clients:
        client.stopped.set()
    for client in clients:
        client.join()
    acknowledged = {trace for client in clients for trace in client.acknowledged}
    assert sum(client.retries for client in clients) >= KILLS
    with Store.open(up.dsn) as store:
        spans = store.query("SELECT TraceId, SpanId FROM otel.spans WHERE RolloutId = 'kill'")
        traces = store.query("SELECT TraceId FROM otel.trace_executions")["TraceId"]
    assert spans.is_duplicated().sum() == 0
    counts = dict(spans.group_by("TraceId").len().iter_rows())
    assert counts == dict.fromkeys(acknowledged, SPANS)
    assert set(traces) == acknowledged
    assert traces.is_duplicated().sum() == 0
