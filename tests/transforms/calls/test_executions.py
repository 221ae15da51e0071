"""Which execution a span belongs to, and whether an execution is whole."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import polars as pl
import pytest
from hypothesis import given
from polars.testing import assert_frame_equal
from tests.otlp import insert_otlp

from ltrain_collector.store import Store
from ltrain_transforms.calls.executions import (
    executions,
    idle_cutoff,
    longest_chain,
    longest_chain_members,
    rank_attempts,
)
from ltrain_transforms.calls.from_spans import calls
from ltrain_transforms.datasets import build
from ltrain_transforms.recipe import Recipe, Source
from ltrain_transforms.source import Selection, read_spans

ReadBack = Callable[[Any], pl.DataFrame]


def made(spans: pl.DataFrame) -> list[dict[str, Any]]:
    return executions(spans, calls(spans)[0]).to_dicts()


def test_an_attempt_is_one_row(scene: Any, read_back: ReadBack) -> None:
    rollout = scene.attempt("t1", 3, wave=2)
    rollout.dispatch()
    rollout.llm()
    rollout.tool()
    rollout.evaluate(1.0)
    rollout.close()
    (row,) = made(read_back(scene))
    assert row["execution_id"] == rollout.execution
    assert row["group_id"] == "demo/train/2/t1"
    assert (row["attempt"], row["sample_index"], row["domain"]) == (1, 3, "db")
    assert (row["outcome"], row["llm_calls"], row["tool_calls"]) == ("ok", 1, 1)
    assert (row["spans_expected"], row["spans_seen"], row["complete"]) == (8, 8, True)
    assert len(row["source_spans"]) == 4
    assert row["critical_path"] == pytest.approx(0.006)


def test_records_long_after_the_end_do_not_prolong_it(scene: Any, read_back: ReadBack) -> None:
    for task in ("t1", "t2"):
        rollout = scene.attempt(task)
        rollout.dispatch()
        rollout.llm()
        rollout.evaluate(1.0)
        rollout.close()
    later = {"start": rollout.spans[0].start + MINUTE}
    rollout.evaluate(0.5, name="thumbs", by="ltrain.instrument", **later)
    # a worker process reports its last spans when it exits
    report = {"ltrain.rollout.spans": 0}
    rollout.emit("ltrain.process", "ltrain.instrument", report, process="worker", **later)
    first, second = made(read_back(scene))
    assert first["wall"] == second["wall"] < 1
    assert first["complete"] and second["complete"]


@pytest.mark.parametrize(
    ("dispatched", "closed", "missing", "complete"),
    [
        (True, True, 0, True),
        (True, True, 1, False),
        (True, False, 0, False),
        (False, False, 0, False),
    ],
)
def test_it_is_complete_when_closed_and_all_spans_arrived(
    scene: Any, read_back: ReadBack, dispatched: bool, closed: bool, missing: int, complete: bool
) -> None:
    rollout = scene.attempt()
    if dispatched:
        rollout.dispatch()
    rollout.llm()
    if closed:
        rollout.close(missing=missing)
    (row,) = made(read_back(scene))
    assert row["complete"] is complete
    assert row["spans_expected"] - row["spans_seen"] == missing


def test_without_a_runner_the_processes_reports_close_it(scene: Any, read_back: ReadBack) -> None:
    rollout = scene.attempt()
    rollout.llm()
    for process, count in (("worker", 3), ("gateway", 1)):
        attributes = {"ltrain.rollout.spans": count}
        rollout.emit("ltrain.process", "ltrain.instrument", attributes, process=process)
    (row,) = made(read_back(scene))
    assert (row["complete"], row["outcome"]) == (True, None)


def test_the_largest_report_of_a_process_counts(scene: Any, read_back: ReadBack) -> None:
    rollout = scene.attempt()
    for _ in range(2):
        rollout.llm()
        rollout.close()
    (row,) = made(read_back(scene))
    assert (row["spans_expected"], row["spans_seen"], row["complete"]) == (8, 8, True)


@pytest.mark.parametrize("step", [0, -86_400, 86_400])
def test_an_attempt_supersedes_those_with_lower_numbers_whatever_the_clock_does(
    scene: Any, read_back: ReadBack, step: int
) -> None:
    early, late = scene.attempt(attempt=2), scene.attempt(attempt=9)
    late.clock = early.clock + step * 1000 * MS
    early.close("infra")
    late.close()
    rows = {row["execution_id"]: row for row in made(read_back(scene))}
    assert (rows[early.execution]["attempt"], rows[early.execution]["superseded"]) == (1, True)
    assert (rows[late.execution]["attempt"], rows[late.execution]["superseded"]) == (2, False)


def test_spans_that_name_nothing_belong_to_their_traces_execution(
    scene: Any, read_back: ReadBack
) -> None:
    rollout = scene.attempt()
    rollout.llm()
    silent = rollout.emit("POST", "httpx", {"ltrain.run.id": "demo"}, named=False)
    spans = read_back(scene)
    own = spans.filter(pl.col("span_id") == silent)
    assert own["execution_id"].to_list() == [rollout.execution]


def test_in_a_shared_trace_the_nearest_named_ancestor_decides(scene: Any, store: Store) -> None:
    shared = f"{5:032x}"
    first, second = scene.attempt("t1", 0), scene.attempt("t1", 1)
    above = first.emit("a", "agent", {}, trace=shared)
    second.emit("b", "agent", {}, trace=shared)
    child = second.emit("c", "agent", {}, trace=shared, parent=above, named=False)
    below = second.emit("d", "agent", {}, trace=shared, parent=child, named=False)
    stray = second.emit("e", "agent", {}, trace=shared, named=False)
    insert_otlp(store, scene.request())
    spans, drops = read_spans(store, Source(run="demo"), Selection())
    own = dict(spans.select("span_id", "execution_id").iter_rows())
    assert (own[child], own[below]) == (first.execution, first.execution)
    assert drops.select("id", "reason").rows() == [(stray, "unresolved")]


def test_an_evaluation_that_links_into_a_trace_belongs_to_its_execution(
    scene: Any, read_back: ReadBack
) -> None:
    rollout = scene.attempt()
    judged = rollout.llm()
    link = [(rollout.trace, judged)]
    attributes = rollout.evaluate(1.0, trace=f"{6:032x}", named=False, links=link)
    own = read_back(scene).filter(pl.col("span_id") == attributes)
    assert own["execution_id"].to_list() == [rollout.execution]


def test_traffic_without_rollouts_is_read_by_trace_or_session(scene: Any, store: Store) -> None:
    rollout = scene.attempt()
    for trace in (1, 2):
        attributes = {"session.id": "s1", "openinference.span.kind": "AGENT"}
        rollout.emit("turn", "agent", attributes, trace=f"{trace:032x}", named=False)
    insert_otlp(store, scene.request())
    where = "ServiceName = 'worker'"
    by_trace, _ = read_spans(store, Source(where=where, execution="trace"), Selection(mode="train"))
    by_session, _ = read_spans(
        store, Source(where=where, execution="session"), Selection(mode="train")
    )
    assert by_trace["execution_id"].to_list() == [f"{1:032x}", f"{2:032x}"]
    assert by_session["execution_id"].to_list() == ["s1", "s1"]
    assert [row["complete"] for row in made(by_session)] == [True]


def test_only_what_is_selected_is_read(scene: Any, store: Store) -> None:
    for wave in (0, 1):
        for mode in ("train", "val"):
            scene.attempt("t1", 0, wave=wave, mode=mode).close()
    insert_otlp(store, scene.request())
    spans, _ = read_spans(store, Source(run="demo"), Selection(mode="val", wave=1))
    assert spans.select("mode", "wave").unique().rows() == [("val", 1)]
    assert read_spans(store, Source(run="other"), Selection())[0].is_empty()


MINUTE = 60_000_000_000


def turns(scene: Any, *minutes: int) -> None:
    """One conversation: an agent's turn, a trace of its own, at each of these minutes."""
    rollout = scene.attempt()
    begin = rollout.clock
    for minute in minutes:
        attributes = {"session.id": "s1", "openinference.span.kind": "AGENT"}
        at = begin + minute * MINUTE
        trace = f"{minute + 1:032x}"
        rollout.emit(
            "turn", "agent", attributes, trace=trace, named=False, start=at, end=at + MINUTE
        )


def test_a_session_is_one_execution_however_long_its_pauses(scene: Any, store: Store) -> None:
    turns(scene, 0, 90)
    insert_otlp(store, scene.request())
    source = Source(where="ServiceName = 'worker'", execution="session")
    spans, _ = read_spans(store, source, Selection(mode="train"))
    (row,) = made(spans)
    assert (row["execution_id"], row["session_id"], row["traces"]) == ("s1", "s1", 2)
    assert row["wall"] == 91 * 60


@pytest.mark.parametrize(
    ("idle", "closed_by", "complete"),
    [(None, None, True), (600.0, "idle", True), (7200.0, None, False)],
)
def test_traffic_that_nobody_closes_is_over_when_it_is_idle(
    scene: Any, store: Store, idle: float | None, closed_by: str | None, complete: bool
) -> None:
    turns(scene, 0)
    insert_otlp(store, scene.request())
    source = Source(where="ServiceName = 'worker'", execution="session", idle_timeout=idle)
    spans, _ = read_spans(store, source, Selection(mode="train"))
    newest = int(spans["end"][0]) + 30 * MINUTE  # of another session
    (row,) = executions(spans, calls(spans)[0], idle_cutoff(newest, source.idle_timeout)).to_dicts()
    assert (row["closed_by"], row["complete"]) == (closed_by, complete)


def test_idle_is_what_ended_long_before_the_newest_span_of_all_batches(
    scene: Any, store: Store, recipe_file: Path, tmp_path: Path
) -> None:
    for minute, session in ((0, "early"), (60, "late")):
        rollout = scene.attempt()
        at = rollout.clock + minute * MINUTE
        attributes = {"session.id": session, "openinference.span.kind": "AGENT"}
        trace = f"{minute + 1:032x}"
        rollout.emit(
            "turn", "agent", attributes, trace=trace, named=False, start=at, end=at + MINUTE
        )
    insert_otlp(store, scene.request())
    where = """where = "ServiceName = 'worker'" """
    source = f'source = {{ {where}, execution = "session", idle_timeout = 600 }}'
    recipe_file.write_text(recipe_file.read_text().replace('source = { run = "demo" }', source))
    made = build(store, Recipe.load(recipe_file), tmp_path / "out", spans_a_batch=1)
    rows = made.table("executions").select("execution_id", "closed_by", "complete").rows()
    assert sorted(rows) == [("early", "idle", True), ("late", None, False)]


def test_a_dispatched_attempt_is_its_runners_to_close(scene: Any, read_back: ReadBack) -> None:
    open_, closed = scene.attempt("t1", 0), scene.attempt("t1", 1)
    for rollout in (open_, closed):
        rollout.dispatch()
        rollout.llm()
    closed.close()
    spans = read_back(scene)
    rows = executions(spans, calls(spans)[0], cutoff=int(spans.select(pl.col("end").max()).item()))
    closed_by = dict(rows.select("execution_id", "closed_by").iter_rows())
    assert closed_by == {open_.execution: None, closed.execution: "runner"}


def test_attempts_in_different_batches_are_ranked_together(scene: Any, read_back: ReadBack) -> None:
    for attempt in (1, 2, 3):
        scene.attempt(attempt=attempt).close()
    spans = read_back(scene)
    whole = executions(spans, calls(spans)[0])
    parts = [executions(own, calls(own)[0]) for own in reversed(spans.partition_by("execution_id"))]
    assert [part["superseded"].to_list() for part in parts] == [[False]] * 3
    assert_frame_equal(rank_attempts(pl.concat(parts)), whole)
    assert whole["superseded"].to_list() == [True, True, False]


def test_an_execution_without_calls_has_no_critical_path(scene: Any, read_back: ReadBack) -> None:
    scene.attempt().dispatch()
    (row,) = made(read_back(scene))
    assert (row["llm_calls"], row["critical_path"], row["complete"]) == (0, None, False)


MS = 1_000_000
AGENT = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "a"}
TOOL = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "t"}
CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}


@pytest.mark.parametrize(
    ("plan", "path"),
    [
        # what it says, from, to (ms), in which of the others it lies
        ([(CHAT, 0, 100, None), (TOOL, 100, 300, None), (TOOL, 100, 150, None)], 0.3),
        ([(AGENT, 0, 900, None), (CHAT, 0, 100, 0), (TOOL, 100, 300, 0)], 0.3),
        ([(TOOL, 0, 900, None), (CHAT, 0, 100, 0), (CHAT, 200, 400, 0)], 0.9),
        (
            [
                *[(AGENT, 0, 1000, None), (AGENT, 0, 600, 0), (AGENT, 0, 500, 0)],
                *[(CHAT, 0, 200, 1), (TOOL, 300, 600, 1), (CHAT, 0, 400, 2), (CHAT, 700, 900, 0)],
            ],
            0.7,
        ),
        ([(AGENT, 0, 400, None), (CHAT, 400, 500, None)], 0.5),
    ],
    ids=[
        "tools in parallel",
        "an agent's time is its calls'",
        "a sub-agent in a tool",
        "two agents in parallel, and what follows both",
        "an agent that shows nothing of itself",
    ],
)
def test_the_critical_path_counts_no_time_twice(
    scene: Any, read_back: ReadBack, plan: list[tuple[Any, int, int, int | None]], path: float
) -> None:
    rollout = scene.attempt()
    begin, ids = rollout.clock, [""]
    for attributes, start, end, inside in plan:
        parent = ids[0 if inside is None else inside + 1]
        times = {"start": begin + start * MS, "end": begin + end * MS}
        ids.append(rollout.emit("x", "agent", dict(attributes), parent=parent, **times))
    (row,) = made(read_back(scene))
    assert row["critical_path"] == pytest.approx(path)


def test_a_clock_that_runs_backwards_gives_no_times(scene: Any, read_back: ReadBack) -> None:
    rollout = scene.attempt()
    rollout.llm()
    spans = read_back(scene)
    call_rows, _ = calls(spans)
    turned = call_rows.with_columns(end=pl.when(pl.col("kind") == "llm").then(0).otherwise("end"))
    (row,) = executions(spans, turned).to_dicts()
    assert (row["critical_path"], row["llm_calls"]) == (None, 1)
    late = spans.with_columns(start=pl.col("start") + MINUTE)
    assert executions(late, call_rows)["wall"].to_list() == [None]


def test_parents_in_a_circle_are_no_error(scene: Any, read_back: ReadBack) -> None:
    rollout = scene.attempt()
    first = rollout.id(rollout.number + 1)
    second = rollout.emit("x", "agent", dict(AGENT), parent=rollout.id(rollout.number + 2))
    rollout.emit("y", "agent", dict(AGENT), parent=first)
    assert second == first
    (row,) = made(read_back(scene))
    assert row["critical_path"] is None  # each holds the other: neither does the work


@pytest.mark.parametrize(
    ("intervals", "longest"),
    [
        ([], 0),
        ([(0, 4), (4, 6)], 6),
        ([(0, 4), (1, 9)], 8),
        ([(0, 4), (3, 5), (5, 9)], 8),
        ([(0, 4), (6, 5)], None),
    ],
)
def test_the_longest_chain_of_calls(intervals: list[tuple[int, int]], longest: int | None) -> None:
    starts, ends = [start for start, _ in intervals], [end for _, end in intervals]
    assert longest_chain(starts, ends) == longest


def test_what_follows_at_once_may_seem_to_begin_too_early() -> None:
    assert longest_chain([0, 99], [100, 200]) == 101
    assert longest_chain([0, 99], [100, 200], slack=1) == 201


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(-1, 20)), max_size=12),
    st.integers(0, 3),
)
def test_the_members_of_the_longest_chain_have_its_length(
    spans: list[tuple[int, int]], slack: int
) -> None:
    intervals = sorted(((start, start + length) for start, length in spans), key=lambda x: x[1])
    starts, ends = ([each[end] for each in intervals] for end in (0, 1))
    longest = longest_chain(starts, ends, slack)
    members = longest_chain_members(starts, ends, slack)
    if longest is None:
        assert members == []
        return
    assert members == sorted(set(members))
    assert sum(ends[at] - starts[at] for at in members) == longest
    for before, after in pairwise(members):
        assert ends[before] <= starts[after] + slack
