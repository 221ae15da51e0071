"""`ltrain up --forward` between real collectors: kills, an outage of the target, and identity."""

import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
from tests.collector.server.test_kill import RECORDS, begin, end, rows, spans
from tests.fork_server import ltrain_command
from tests.http_requests import ask, health, post
from tests.up import FREE

from ltrain_collector.access import Keys
from ltrain_collector.store import Store
from ltrain_instrument.identity import Identity

Start = Callable[..., Any]


def wait_for_target(port: int, seconds: float = 90) -> None:
    """Wait until nothing waits for the target of the collector at a port."""
    deadline = time.monotonic() + seconds
    while (state := health(port)["forward"]["copy"])["waiting_bytes"] or state["away"]:
        assert time.monotonic() < deadline, state
        time.sleep(0.1)
    assert state["missing"] == {}


def test_kill_9_and_an_outage_of_the_target_lose_nothing(start: Start, tmp_path: Path) -> None:
    target = start(tmp_path / "target" / "store")
    forward = ("--forward", f"copy={target.endpoint}")
    up = start(tmp_path / "own" / "store", 0, 0, *forward)
    clients = begin(up.otlp)
    time.sleep(0.5)
    target.stop(signal.SIGKILL)
    for _ in range(3):
        time.sleep(random.uniform(0.05, 0.8))
        up.stop(signal.SIGKILL)
        up = start(tmp_path / "own" / "store", up.otlp, up.sql, *forward)
    target = start(tmp_path / "target" / "store", target.otlp, target.sql)
    time.sleep(0.5)
    up.stop(signal.SIGKILL)
    up = start(tmp_path / "own" / "store", up.otlp, up.sql, *forward)
    acknowledged = end(clients)
    wait_for_target(up.otlp)
    with Store.open(target.dsn) as store:
        found = rows(store)
    assert sum(map(len, acknowledged.values())) > 20
    assert found == {name: dict.fromkeys(made, RECORDS) for name, made in acknowledged.items()}


def test_the_target_gets_what_is_stored_without_sender_and_keys(
    start: Start, tmp_path: Path
) -> None:
    target = start(tmp_path / "target" / "store")
    up = start(tmp_path / "own" / "store", 0, 0, "--forward", f"copy={target.endpoint}")
    key = Keys(up.directory).sign_bound(Identity(rollout="ro"), 600)
    request = spans(1)
    first, second, *_ = request.resource_spans[0].scope_spans[0].spans
    del first.attributes[:]  # the key names the rollout
    second.attributes.add(key="ltrain.reward.scope").value.string_value = "forged"
    for each in request.resource_spans[0].scope_spans[0].spans[1:]:
        each.attributes[0].value.string_value = "ro"
    answer = post(up.otlp, request.SerializeToString(), Authorization=f"Bearer {key}")
    assert (answer.status, b"does not allow rewards" in answer.body) == (200, True)
    span = {"traceId": "0" * 31 + "2", "spanId": "0" * 15 + "1", "name": "json"}
    scoped = [{"spans": [span | {"startTimeUnixNano": "1790000000000000000"}]}]
    resource = {"attributes": [{"key": "ltrain.sender", "value": {"stringValue": "service"}}]}
    body = orjson.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": scoped}]})
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    assert ask(up.otlp, "POST", "/v1/traces", body, headers).status == 200
    wait_for_target(up.otlp)
    with Store.open(target.dsn) as store:
        found = store.query(
            "SELECT SpanName, RolloutId, ResourceAttributes['ltrain.sender'], count() "
            "FROM otel.spans GROUP BY ALL ORDER BY SpanName"
        ).rows()
    # the sender is that of the target's own store: no key
    assert found == [("chat", "ro", "none", RECORDS - 1), ("json", "ro", "none", 1)]


def test_a_collector_does_not_forward_to_itself(tmp_path: Path) -> None:

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [ltrain_command(), "up", "--dir", str(tmp_path / "store"), *FREE]
    command[command.index("--otlp-port") + 1] = str(port)
    command += ["--forward", f"http://localhost:{port}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "is this collector itself" in done.stderr
