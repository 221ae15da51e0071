"""The ends of rollouts in a runner's log, and the spans of them in a real store."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.otlp import insert_otlp, open_empty_store

from ltrain_train.rollout import Runner, end_of
from ltrain_train.rollout.rewards import RewardFailed
from ltrain_train.rollout.tasks import Task
from ltrain_transforms.source import wait_ended


def test_the_runner_knows_the_end_and_the_spans_of_each_rollout(
    runner: Callable[..., Runner], task: Callable[..., Task], outside: Any, tmp_path: Path
) -> None:
    started = runner("plain:solve", reward="scores:fails_on_some")
    tasks = [task("a"), task("b"), task("c", raises=True)]
    results = started.run("train", 1, tasks, 1, sampling={})
    outside.wait_spans(3, name="ltrain.rollout")
    ends = [end_of(result) for result in results]
    ids = [each.rollout for each in ends]
    assert started.log.ended(ids) == ends
    assert {each.rollout for each in ends if each.outcome != "infra"} == started.log.finished.keys()
    with open_empty_store(tmp_path / "store") as store:
        for request in outside.requests:
            insert_otlp(store, request)
        assert wait_ended(store, ends, 0) == set()
        more = [each.model_copy(update={"spans": each.spans + 1}) for each in ends]
        assert wait_ended(store, more, 0) == set(ids), "the runner counts all of its spans"


@pytest.mark.parametrize("lost", [False, True])
def test_a_kill_between_the_end_and_its_closing_span_leaves_one_end(
    runner: Callable[..., Runner],
    task: Callable[..., Task],
    outside: Any,
    home: Path,
    tmp_path: Path,
    lost: bool,
) -> None:
    [ended] = runner("plain:solve").run("train", 0, [task("a")], 1, sampling={})
    outside.wait_spans(1, name="ltrain.rollout")
    before = len(outside.requests)
    log = home / "runs" / "r" / "attempts.jsonl"
    *lines, _ = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines))
    again = runner("plain:solve")
    assert [*again.log.finished] == [ended.identity.rollout]
    outside.wait_spans(2, name="ltrain.rollout")
    with open_empty_store(tmp_path / "store") as store:
        for request in outside.requests[before if lost else 0 :]:
            insert_otlp(store, request)
        [row] = store.query("SELECT outcome, toUInt8(attempt) FROM otel.rollouts").iter_rows()
        [(result,)] = store.query(
            "SELECT SpanAttributes['ltrain.rollout.result'] FROM otel.spans "
            "WHERE SpanName = 'ltrain.rollout'"
        ).iter_rows()
    assert row == ("ok", 1)
    assert bool(result) != lost, "the complete span counts"


def test_a_finished_rollout_does_not_run_again(
    runner: Callable[..., Runner], task: Callable[..., Task], outside: Any
) -> None:
    started = runner("plain:solve", reward="scores:fails_on_some")
    results = started.run("train", 1, [task("a"), task("b")], 1, sampling={})
    done = [str(each.identity.rollout) for each in results if each.identity.task == "b"]
    with pytest.raises(RewardFailed):
        started.run("train", 1, [task("b")], 4, sampling={}, finished=done)
    closed = outside.wait_spans(5, name="ltrain.rollout")
    assert len({each.trace for each in closed}) == 5
