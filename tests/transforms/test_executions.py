"""Which execution a span belongs to, and whether an execution is whole."""

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from ltrain_collector.store import Store
from ltrain_transforms.calls import calls
from ltrain_transforms.executions import executions, longest_chain
from ltrain_transforms.recipe import Source
from ltrain_transforms.source import Selection, read

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
        said = {"ltrain.rollout.spans": count}
        rollout.emit("ltrain.process", "ltrain.instrument", said, process=process)
    (row,) = made(read_back(scene))
    assert (row["complete"], row["outcome"]) == (True, None)


def test_the_largest_report_of_a_process_counts(scene: Any, read_back: ReadBack) -> None:
    rollout = scene.attempt()
    for _ in range(2):
        rollout.llm()
        rollout.close()
    (row,) = made(read_back(scene))
    assert (row["spans_expected"], row["spans_seen"], row["complete"]) == (8, 8, True)


def test_a_later_attempt_supersedes_whatever_its_number(scene: Any, read_back: ReadBack) -> None:
    late, early = scene.attempt(attempt=9), scene.attempt(attempt=2)
    late.close()
    early.close("infra")
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
    store.insert_otlp(scene.request())
    spans, drops = read(store, Source(run="demo"), Selection())
    own = dict(spans.select("span_id", "execution_id").iter_rows())
    assert (own[child], own[below]) == (first.execution, first.execution)
    assert drops.select("id", "reason").rows() == [(stray, "unresolved")]


def test_an_evaluation_that_links_into_a_trace_belongs_to_its_execution(
    scene: Any, read_back: ReadBack
) -> None:
    rollout = scene.attempt()
    judged = rollout.llm()
    link = [(rollout.trace, judged)]
    said = rollout.evaluate(1.0, trace=f"{6:032x}", named=False, links=link)
    own = read_back(scene).filter(pl.col("span_id") == said)
    assert own["execution_id"].to_list() == [rollout.execution]


def test_traffic_without_rollouts_is_read_by_trace_or_session(scene: Any, store: Store) -> None:
    rollout = scene.attempt()
    for trace in (1, 2):
        said = {"session.id": "s1", "openinference.span.kind": "AGENT"}
        rollout.emit("turn", "agent", said, trace=f"{trace:032x}", named=False)
    store.insert_otlp(scene.request())
    where = "ServiceName = 'worker'"
    by_trace, _ = read(store, Source(where=where, execution="trace"), Selection(mode="train"))
    by_session, _ = read(store, Source(where=where, execution="session"), Selection(mode="train"))
    assert by_trace["execution_id"].to_list() == [f"{1:032x}", f"{2:032x}"]
    assert by_session["execution_id"].to_list() == ["s1", "s1"]
    assert [row["complete"] for row in made(by_session)] == [True]


def test_only_what_is_selected_is_read(scene: Any, store: Store) -> None:
    for wave in (0, 1):
        for mode in ("train", "val"):
            scene.attempt("t1", 0, wave=wave, mode=mode).close()
    store.insert_otlp(scene.request())
    spans, _ = read(store, Source(run="demo"), Selection(mode="val", wave=1))
    assert spans.select("mode", "wave").unique().rows() == [("val", 1)]
    assert read(store, Source(run="other"), Selection())[0].is_empty()


@pytest.mark.parametrize(
    ("intervals", "longest"),
    [
        ([], 0),
        ([(0, 4), (4, 6)], 6),
        ([(0, 4), (1, 9)], 8),
        ([(0, 4), (3, 5), (5, 9)], 8),
    ],
)
def test_the_longest_chain_of_calls(intervals: list[tuple[int, int]], longest: int) -> None:
    starts, ends = [start for start, _ in intervals], [end for _, end in intervals]
    assert longest_chain(starts, ends) == longest
