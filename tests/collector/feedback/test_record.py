"""Feedback from JSON to evaluation spans."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.otlp import insert_otlp, open_empty_store

from ltrain_collector.errors import Malformed
from ltrain_collector.feedback import parse_feedback, read_times, to_request

TRACE = "0123456789abcdef0123456789abcdef"


def body(*items: dict[str, Any]) -> bytes:
    return json.dumps(items[0] if len(items) == 1 else items).encode()


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"value": 1}, "names no target"),
        ({"value": 1, "trace": "abc"}, "'abc' is no trace id"),
        ({"value": 1, "trace": TRACE, "session": "s"}, "one target, not trace and session"),
        ({"value": "up", "session": "s"}, "value: .*number"),
        (
            {"value": 1e308, "session": "s"},
            r"value: .*1e\+308 does not count. Pass a number from -1e\+100 to",
        ),
        ({"session": "s"}, "It has no content. Add 'value', 'comment' or 'withdrawn'"),
        ({"session": "s", "value": 1, "withdrawn": True}, "'withdrawn' has no value"),
        ({"session": "s", "value": 1, "call": "0" * 16}, "Add 'trace'"),
        ({"trace": TRACE, "value": 1, "call": "xyz"}, "call: .*pattern"),
        ({"value": 1, "session": "s", "score": 1}, "score: Extra inputs"),
        ({"value": 1, "session": ""}, "session: .*at least 1 character"),
        ({"value": 1, "session": "s", "name": "x" * 501}, "name: .*at most 500"),
    ],
)
@pytest.mark.parametrize("is_list", [False, True])
def test_other_json_is_refused(item: dict[str, Any], message: str, is_list: bool) -> None:
    with pytest.raises(Malformed, match=message):
        parse_feedback(body(item, item) if is_list else body(item))


@pytest.mark.parametrize("text", ["", "[]", "3", "{", '{"value": NaN, "session": "s"}'])
def test_a_body_that_is_no_feedback_is_refused(text: str) -> None:
    with pytest.raises(Malformed, match="This is no feedback"):
        parse_feedback(text.encode())


def test_a_repeated_id_is_stored_once(tmp_path: Path) -> None:
    feedback = parse_feedback(
        body(
            {"trace": TRACE, "name": "thumbs", "value": 1, "id": "click-1"},
            {"session": "s1", "name": "thumbs", "value": 0, "comment": "slow", "id": "click-2"},
            {"rollout": "r1", "name": "thumbs", "value": 0.5},
        )
    )
    with open_empty_store(tmp_path / "store") as store:
        for now in (1_700_000_000_000_000_000, 1_700_000_009_000_000_000):
            request = to_request(feedback, now, read_times(store, feedback))
            insert_otlp(store, request.SerializeToString())
        sql = (
            "SELECT name, value, explanation, rollout, trace, source FROM otel.evaluations "
            "ORDER BY value, judged"
        )
        rows = store.query(sql).rows()
    values = [(value, comment, rollout) for _, value, comment, rollout, _, _ in rows]
    assert values == [(0.0, "slow", ""), (0.5, "", "r1"), (0.5, "", "r1"), (1.0, "", "")]
    assert rows[-1][4] == TRACE
    assert {(name, source) for name, *_, source in rows} == {("thumbs", "agent")}
