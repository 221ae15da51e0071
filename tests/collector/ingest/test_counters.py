import json
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from ltrain_collector.ingest.counters import Histogram
from ltrain_collector.store import program_version


def test_a_value_is_counted_below_its_bound() -> None:
    tally = Histogram((1, 10))
    for value in (0.5, 1, 2, 10, 11):
        tally.add(value)
    assert (tally.counts, tally.sum) == ([2, 2, 1], 24.5)


def test_health_reports_the_counters(
    start: Callable[..., Any], request_of: Callable[..., bytes], tmp_path: Path
) -> None:
    up = start(tmp_path / "store")
    connection = HTTPConnection("127.0.0.1", up.otlp, timeout=20)
    kind = {"Content-Type": "application/x-protobuf"}
    sent = [
        ("/v1/traces", request_of((1, 1), (1, 2))),
        ("/v1/traces", request_of((1, 3), start=0)),
        ("/v1/logs", b"\xff"),
        ("/v1/metrics", b""),
    ]
    for path, body in sent:
        connection.request("POST", path, body, kind)
        connection.getresponse().read()
    connection.request("GET", "/health")
    health = json.loads(connection.getresponse().read())
    connection.close()
    disk = health.pop("disk")
    assert 0 < disk["free"] <= disk["size"]
    assert health["recent"].pop("lag") > 0
    nothing = {"requests": 0, "accepted": 0, "rejected": 0, "refused": {}}
    assert health == {
        "status": "ok",
        "version": program_version(),
        "requests": 3,
        "traces": {"requests": 2, "accepted": 2, "rejected": 1, "refused": {}},
        "logs": {**nothing, "refused": {"malformed": 1}},
        "metrics": {**nothing, "requests": 1},
        "inserts": 1,
        "failures": 0,
        "waiting_bytes": 0,
        "recent": {"requests": 3, "rejected": 1, "refused": {"malformed": 1}, "failures": 0},
    }
