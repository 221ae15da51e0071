"""`POST /v1/feedback` of a real collector."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.http_requests import ask

from ltrain_collector.access import Keys, make_bound_key
from ltrain_collector.access.grants import Role
from ltrain_collector.store import Store

TRACE = "0123456789abcdef0123456789abcdef"
JSON = {"Content-Type": "application/json"}
PATH = "/v1/feedback"


def send(up: Any, feedback: object, **headers: str) -> tuple[int, Any]:
    body = feedback if isinstance(feedback, bytes) else json.dumps(feedback).encode()
    answer = ask(up.otlp, "POST", PATH, body, JSON | headers)
    return answer.status, answer.json


def evaluations(dsn: str, name: str) -> list[tuple[object, ...]]:
    sql = "SELECT rollout, value, explanation FROM otel.evaluations WHERE name = {name:String}"
    with Store.open(dsn) as store:
        return sorted(store.query(sql, {"name": name}).iter_rows())


def test_feedback_is_readable_once_it_is_answered(up: Any) -> None:
    first = {"trace": TRACE, "value": 1, "name": "plain", "comment": "good"}
    assert send(up, first) == (200, {"stored": 1})
    assert send(up, [{"rollout": "r1", "value": 0, "name": "plain"}] * 2) == (200, {"stored": 2})
    assert evaluations(up.dsn, "plain") == [("", 1.0, "good"), ("r1", 0.0, ""), ("r1", 0.0, "")]


def test_feedback_with_an_id_is_stored_once(up: Any) -> None:
    feedback = {"session": "s1", "value": 1, "name": "once", "id": "click-1"}
    for _ in range(3):
        assert send(up, feedback) == (200, {"stored": 1})
    assert evaluations(up.dsn, "once") == [("", 1.0, "")]


@pytest.mark.parametrize(
    ("body", "headers", "status", "message"),
    [
        (b"{}", {}, 400, "names no target"),
        (b'{"trace": "4bf92f3577b34da6a3ce929d0e0e4736"}', {}, 400, "Add 'value', 'comment'"),
        (b'{"value": 1}', {}, 400, "names no target"),
        (b"no json", {}, 400, "This is no feedback"),
        (b" " * (1 << 20) + b" ", {}, 413, ""),
        (b"{}", {"Content-Type": "text/plain"}, 415, "application/json"),
        (b"{}", {"Content-Encoding": "gzip"}, 415, "uncompressed"),
    ],
    ids=["empty", "content", "target", "text", "size", "type", "encoding"],
)
def test_a_bad_request_is_refused(
    up: Any, body: bytes, headers: dict[str, str], status: int, message: str
) -> None:
    answered, answer = send(up, body, **headers)
    assert answered == status
    assert message in answer["message"]


def test_only_post_is_served(up: Any) -> None:
    answer = ask(up.otlp, "GET", PATH)
    assert answer.status == 405 and "use POST /v1/feedback" in answer.text


def test_a_store_with_keys_asks_for_one(start: Callable[..., Any], tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keyed")
    ingest, _ = keys.make_key(Role.INGEST)
    query, _ = keys.make_key(Role.QUERY)
    up = start(tmp_path / "keyed")
    feedback = {"rollout": "r1", "value": 1, "name": "keyed"}
    assert send(up, feedback)[0] == 401
    assert send(up, feedback, Authorization=f"Bearer {query}")[0] == 403
    bound = make_bound_key(keys, Role.INGEST, ["rollout=r1"], 60, False)
    status, answer = send(up, feedback, Authorization=f"Bearer {bound}")
    assert status == 403 and "does not allow rewards" in answer["message"]
    allowed = make_bound_key(keys, Role.INGEST, ["rollout=r1"], 60, True)
    status, answer = send(up, feedback | {"rollout": "r2"}, Authorization=f"Bearer {allowed}")
    assert status == 403 and "not bound to" in answer["message"]
    for key in (ingest, allowed):
        assert send(up, feedback, Authorization=f"Bearer {key}") == (200, {"stored": 1})
    assert evaluations(up.owned, "keyed") == [("r1", 1.0, "")] * 2
