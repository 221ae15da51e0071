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
