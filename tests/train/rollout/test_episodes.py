"""Episodes driven as rollouts: their results, their traces, and the rewards of their steps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.otlp import insert_otlp, open_empty_store

from ltrain_train.rollout import Runner, Task
from ltrain_train.workers import Outcome
from ltrain_transforms.datasets import derive
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.source import Selection, read_spans

Start = Callable[..., Runner]
Make = Callable[..., Task]

RECIPE = """
[source]
run = "r"
[[policy]]
name = "sql"
[[reward]]
name = "reward"
evaluation = "reward"
[[reward]]
name = "step"
evaluation = "step"
from = "agent"
"""


@pytest.fixture
def tables(outside: Any, tmp_path: Path) -> Callable[[], dict[str, pl.DataFrame]]:
    """Derive the tables of the spans that the collector received."""

    def derive_tables() -> dict[str, pl.DataFrame]:
        (tmp_path / "ltrain.toml").write_text(RECIPE)
        recipe = Recipe.load(tmp_path / "ltrain.toml")
        with open_empty_store(tmp_path / "traces") as store:
            for request in outside.requests:
                insert_otlp(store, request)
            spans, _ = read_spans(store, recipe.source, Selection())
        return derive(spans, recipe).tables

    return derive_tables


def run(runner: Start, agent: str, task: Task) -> Any:
    started = runner(
        agent,
        reward="ltrain_episodes:episode_reward",
        agent_sees=("input", "answer"),
        environ={"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "langchain"},
    )
    (result,) = started.run("train", 0, [task], 1, sampling={})
    return result


def test_a_second_attempt_is_a_second_call_and_each_step_has_its_reward(
    runner: Start, task: Make, outside: Any, tables: Callable[[], dict[str, pl.DataFrame]]
) -> None:
    outside.rules = [("may contain a mistake", r"\boxed{4}")]
    outside.reply = r"\boxed{5}"
    result = run(runner, "episodes:solve", task(answer="4"))
    assert (result.outcome, result.llm_calls) == (Outcome.OK, 2)
    assert result.rewards == {"reward": 1.0}
    assert [call.body["max_tokens"] for call in outside.calls] == [64, 64]
    derived = tables()
    calls = derived["calls"].sort("seq")
    kinds = calls.filter(pl.col("kind").is_in(["llm", "tool"]))
    assert kinds["kind"].to_list() == ["llm", "tool", "llm", "tool"]
    assert kinds["agent"].to_list() == ["MathAgent"] * 4
    tools, llm = kinds.filter(kind="tool"), kinds.filter(kind="llm")
    assert tools["name"].to_list() == ["MathEnv", "MathEnv"]
    assert tools["requested_by"].to_list() == llm["call_id"].to_list()
    steps = derived["rewards"].filter(rule="step").sort("value")
    assert steps["value"].to_list() == [0.0, 1.0]
    assert steps["call_id"].to_list() == tools["call_id"].to_list()


def test_agents_that_share_an_environment_have_their_own_calls_and_rewards(
    runner: Start, task: Make, outside: Any, tables: Callable[[], dict[str, pl.DataFrame]]
) -> None:
    result = run(runner, "episodes:relay", task())
    assert result.rewards == {"reward": 3.0, "reward.first": 1.0, "reward.second": 2.0}
    llm = tables()["calls"].filter(kind="llm").sort("seq")
    assert llm["agent"].to_list() == ["first", "second"]


def test_a_step_that_raises_fails_the_rollout_and_its_tool_call(
    runner: Start, task: Make, outside: Any, tables: Callable[[], dict[str, pl.DataFrame]]
) -> None:
    result = run(runner, "episodes:broken", task())
    assert result.outcome is Outcome.ERROR and "the board fell over" in result.reason
    (tool,) = tables()["calls"].filter(kind="tool").to_dicts()
    assert (tool["name"], tool["status"], tool["error_type"]) == ("Broken", "error", "RuntimeError")
