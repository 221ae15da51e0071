"""Finished rollouts, read from a real store."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.otlp import insert_otlp, open_empty_store

from ltrain_train.rollout import Runner, finished_rollouts
from ltrain_train.rollout.rewards import RewardFailed
from ltrain_train.rollout.tasks import Task
from ltrain_train.workers import COUNTED_OUTCOMES


def test_a_rollout_is_finished_when_its_outcome_counts(
    runner: Callable[..., Runner], task: Callable[..., Task], outside: Any, tmp_path: Path
) -> None:
    started = runner("plain:solve", reward="scores:fails_on_some")
    tasks = [task("a"), task("b"), task("c", raises=True)]
    results = started.run("train", 1, tasks, 1, sampling={})
    outside.wait_spans(3, name="ltrain.rollout")
    with pytest.raises(RewardFailed):
        done = [str(r.identity.rollout) for r in results if r.identity.task == "b"]
        started.run("train", 1, [task("b")], 4, sampling={}, finished=done)
    outside.wait_spans(6, name="ltrain.rollout")
    counted = {
        str(r.identity.rollout): r.outcome.value for r in results if r.outcome in COUNTED_OUTCOMES
    }
    with open_empty_store(tmp_path / "store") as store:
        for request in outside.requests:
            insert_otlp(store, request)
        assert finished_rollouts(store, "r", "train", 1) == counted
        assert len(counted) == 3
        assert (
            finished_rollouts(store, "r", "val", 1)
            == finished_rollouts(store, "r", "train", 2)
            == {}
        )
        per_rollout = store.query(
            "SELECT uniqExact(TraceId) AS traces FROM otel.spans WHERE RolloutId != '' "
            "GROUP BY RolloutId"
        )
        assert per_rollout["traces"].to_list() == [1] * 6
