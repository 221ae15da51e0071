"""`ltrain reward` on a real store."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.otlp import insert_otlp, open_empty_store

from ltrain_collector.errors import BadFeedback, NoTarget
from ltrain_collector.feedback import record_reward
from ltrain_collector.feedback.reward_command import find_target
from ltrain_collector.store import Store

FIRST, SECOND = "11" + "a" * 30, "11" + "b" * 30


@pytest.fixture
def dsn(tmp_path: Path, request_of: Callable[..., bytes]) -> Iterator[str]:
    address = f"chdb://{tmp_path}/store"
    with open_empty_store(tmp_path / "store") as store:
        insert_otlp(store, request_of((0x11, 1), ltrain__rollout__id="77abc"))
        insert_otlp(store, request_of((0x12, 2), session__id="chat-7"))
        insert_otlp(store, request_of((0x13, 3), gen_ai__conversation__id="chat-8"))
    yield address


def ids(dsn: str) -> dict[str, str]:
    with Store.open(dsn) as store:
        rows = store.query("SELECT toString(SpanId) AS span, TraceId AS trace FROM otel.spans")
        return {str(span)[-1]: str(trace) for span, trace in rows.iter_rows()}


def test_a_reward_is_recorded_for_each_kind(dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    trace = ids(dsn)["2"]
    for identifier in ("77a", trace, "session:chat-8"):
        record_reward(identifier, 0.5, "thumbs", "fine", dsn, as_json=False)
    printed = capsys.readouterr().out
    assert "thumbs = 0.5 is recorded for the rollout 77abc." in printed
    assert f"the trace {trace}." in printed and "the session chat-8." in printed
    sql = "SELECT rollout, value, explanation FROM otel.evaluations ORDER BY rollout"
    with Store.open(dsn) as store:
        rows = store.query(sql).rows()
    assert rows == [("", 0.5, "fine"), ("", 0.5, "fine"), ("77abc", 0.5, "fine")]


@pytest.mark.parametrize(
    ("identifier", "message"),
    [
        ("nothing", "no rollout and no trace and no session whose id begins with 'nothing'"),
        ("rollout:chat-7", "no rollout whose id begins"),
        ("chat-", "ambiguous.*session:chat-7, session:chat-8"),
        ("", "The id is empty"),
        ("trace:", "The id is empty"),
    ],
)
def test_an_id_that_names_no_execution_is_refused(dsn: str, identifier: str, message: str) -> None:
    with Store.open(dsn) as store, pytest.raises(NoTarget, match=message):
        find_target(store, identifier)


@pytest.mark.parametrize(
    ("value", "name", "message"), [(float("nan"), "x", "value = nan"), (1.0, "", "name = ''")]
)
def test_an_invalid_reward_is_refused(dsn: str, value: float, name: str, message: str) -> None:
    with pytest.raises(BadFeedback, match=message):
        record_reward("77abc", value, name, None, dsn, as_json=False)


def test_there_must_be_a_store(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="store"):
        record_reward("1", 1.0, "x", None, f"chdb://{tmp_path}/absent", as_json=False)
