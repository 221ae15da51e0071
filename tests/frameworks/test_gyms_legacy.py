"""Environments of verifiers before 0.4 as rollouts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from tests.frameworks.gym_stack import Stack, plan_of, python_of, running_stack, task_of

from ltrain_train.rollout import EnvironmentFailed, load_tasks

PYTHON = python_of("gyms_legacy")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("stack")) as made:
        yield made


def test_an_environment_before_verifiers_0_4_is_played(stack: Stack) -> None:
    more = 'held_out_options = { split = "eval" }'
    plan = plan_of("verifiers:legacy_sums", PYTHON, more=more)
    assert plan.recipe.policy[0].agents == ("policy",)
    assert plan.rollout.validation is not None
    files = (plan.rollout.tasks, plan.rollout.validation)
    tasks, held_out = (load_tasks(Path(file)) for file in files)
    assert (len(tasks), len(held_out)) == (6, 2)
    results = stack.play(plan, 4)
    assert [(each.outcome, each.reason) for each in results] == [("ok", "")] * 4
    answers = {task.id: task.further_fields["environment"]["row"]["answer"] for task in tasks}
    for each in results:
        right = float(int(answers[task_of(each)]) % 2)
        expected = {"reward": right + 0.5, "rubric": right + 0.5, "right": right, "used_tool": 1.0}
        assert {name: each.rewards[name] for name in expected} == expected
    rows = stack.calls(plan, 8)
    assert rows["agent"].to_list() == ["policy"] * 8
    for each in results:
        own = rows.filter(pl.col("execution_id").str.starts_with(str(each.identity.rollout)))
        assert len(own) == 2, "an attempt's calls have its key"


def test_the_tasks_to_train_on_do_not_evaluate(stack: Stack) -> None:
    more = 'options = { held_out = 0 }\nheld_out_options = { split = "eval" }'
    with pytest.raises(EnvironmentFailed, match="no data set for evaluations"):
        plan_of("verifiers:legacy_sums", PYTHON, more=more)
    with pytest.raises(EnvironmentFailed, match="verifiers cannot load 'nothing'"):
        plan_of("verifiers:nothing", PYTHON)
