"""Feedback by hand in real stores: its name, what takes whose place, and stores that refuse it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.collector.conftest import StartUp
from tests.otlp import insert_otlp, open_empty_store

from ltrain_collector.access import Keys, Role
from ltrain_collector.admin import TraceFilter, read_lines
from ltrain_collector.errors import NotSaved
from ltrain_collector.feedback import Feedback, list_feedback, save_feedback
from ltrain_collector.store import Store
from ltrain_instrument.feedback import Target

TRACE, ROLLOUT = f"{0x11:032x}", "77abc"
TARGET = Target("rollout", ROLLOUT)


@pytest.fixture
def store(tmp_path: Path, request_of: Any) -> Iterator[Store]:
    with open_empty_store(tmp_path / "store") as opened:
        fill(opened, request_of)
        yield opened


def fill(store: Store, request_of: Any) -> None:
    chat = {"gen_ai__operation__name": "chat"}
    insert_otlp(store, request_of((0x11, 1), (0x11, 2), ltrain__rollout__id=ROLLOUT, **chat))
    insert_otlp(store, request_of((0x12, 3), **chat))


def give(store: Store, value: float | None = None, person: str = "alice", **more: Any) -> None:
    target = {} if "trace" in more else {"rollout": ROLLOUT}
    fields = {"name": "thumbs", "value": value, **target, **more}
    save_feedback(store, Feedback.model_validate(fields), person)


def listed(store: Store) -> list[tuple[str, float | None, str, str, bool]]:
    rows = list_feedback(store, TARGET)
    return [(one.name, one.value, one.note, one.person, one.counts) for one in rows]


def test_a_later_one_takes_the_place_whoever_gave_it(store: Store) -> None:
    give(store, 1)
    give(store, 0, person="bob", comment="wrong table")
    give(store, 0.5, name="style")
    give(store, 0.25, trace=TRACE)  # the trace is of the rollout
    give(store, comment="look again")
    assert listed(store) == [
        ("thumbs", None, "look again", "alice", False),
        ("thumbs", 0.25, "", "alice", True),
        ("style", 0.5, "", "alice", True),
        ("thumbs", 0.0, "wrong table", "bob", False),
        ("thumbs", 1.0, "", "alice", False),
    ]


def test_a_call_has_its_own(store: Store) -> None:
    give(store, 1)
    give(store, 0, trace=TRACE, call=f"{2:016x}")
    of_call, of_rollout = list_feedback(store, TARGET)
    assert (of_call.call, of_call.value, of_call.counts) == (f"{2:016x}", 0.0, True)
    assert (of_rollout.call, of_rollout.value, of_rollout.counts) == ("", 1.0, True)
    assert list_feedback(store, Target("trace", f"{0x12:032x}")) == []


def test_a_repeated_one_is_stored_once(store: Store) -> None:
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: give(store, 1, id="form-1"), range(8)))
    assert len(listed(store)) == 1
    give(store, 0, id="form-1")
    give(store, 1, id="form-1")
    assert [value for _, value, *_ in listed(store)] == [1.0, 0.0, 1.0]


def test_a_withdrawal_counts_in_lists(store: Store) -> None:
    def unrated() -> set[str]:
        return {line.id for line in read_lines(store, TraceFilter(unrated="thumbs"), 10)}

    other = f"{0x12:032x}"
    assert unrated() == {ROLLOUT, other}
    give(store, 1)
    give(store, 1, trace=other)
    give(store, 1, name="style", trace=other)
    assert unrated() == set()
    give(store, withdrawn=True)
    assert unrated() == {ROLLOUT}
    rewards = {line.id: line.rewards for line in read_lines(store, TraceFilter(), 10)}
    assert rewards == {ROLLOUT: {}, other: {"style": "1", "thumbs": "1"}}
    give(store, comment="a note")
    assert unrated() == {ROLLOUT}
    give(store, 0, trace=TRACE)  # feedback on a trace of the rollout
    assert unrated() == set()
    [withdrawn] = [one for one in list_feedback(store, TARGET) if one.withdrawn]
    assert not withdrawn.counts and withdrawn.value is None


def test_feedback_of_a_program_is_not_by_hand(store: Store, request_of: Any) -> None:
    forged = {
        "gen_ai__evaluation__name": "thumbs",
        "gen_ai__evaluation__score__value": "1",
        "ltrain__rollout__id": ROLLOUT,
        "user__name": "alice",
    }
    evaluation = {"name": "gen_ai.evaluation.result", **forged}
    insert_otlp(store, request_of((0x21, 4), scope="ltrain.feedback", **evaluation))
    assert listed(store) == []
    sources = store.query("SELECT source FROM otel.evaluations")["source"].to_list()
    assert sources == ["agent"]


def test_an_owner_writes_for_a_person_who_may_only_read(
    tmp_path: Path, start: StartUp, request_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LTRAIN_HOME", str(tmp_path))
    key, _ = Keys(tmp_path / "store").make_key(Role.QUERY)
    up = start(tmp_path / "store")
    with Store.open(up.owned) as owned:
        fill(owned, request_of)
    with Store.open(up.dsn, key=key) as store:
        give(store, 1)
        assert [value for _, value, *_ in listed(store)] == [1.0]
        # another user has no secret of the store
        monkeypatch.setenv("LTRAIN_HOME", str(tmp_path / "elsewhere"))
        with pytest.raises(NotSaved, match=r"The feedback is not saved: .*Without an admin key"):
            give(store, 0)
        assert [value for _, value, *_ in listed(store)] == [1.0]


COPY = (
    "CREATE TABLE otel.theirs ENGINE = MergeTree ORDER BY TraceId AS SELECT * FROM otel.otel_traces"
)
"""A table with the columns of an exporter alone."""


def test_another_table_of_an_exporter_takes_none(store: Store) -> None:
    store.command(COPY)
    store.migrate(traces="otel.theirs")
    with pytest.raises(NotSaved, match=r"The feedback is not saved: .*read another table"):
        give(store, 1)
    assert listed(store) == []


def test_the_table_of_an_exporter_shows_what_it_takes(store: Store) -> None:
    for statement in (
        COPY,
        "DROP VIEW otel.spans",
        "DROP VIEW otel.otel_trace_executions_mv",
        "DROP TABLE otel.otel_traces",
        "RENAME TABLE otel.theirs TO otel.otel_traces",
    ):
        store.command(statement)
    store.migrate()
    give(store, 1)
    give(store, 0)
    assert [(value, counts) for _, value, _, _, counts in listed(store)] == [
        (0.0, True),
        (1.0, False),
    ]
