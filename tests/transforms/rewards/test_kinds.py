"""Every kind of reward works through the protocol alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import pytest
from tests.otlp import insert_otlp

from ltrain_collector.store import Store
from ltrain_transforms.datasets import build
from ltrain_transforms.recipe import REWARD_KINDS, CallReward, Recipe, Reward
from ltrain_transforms.reports import report_rules
from ltrain_transforms.rewards.kinds import KINDS, rules_of
from ltrain_transforms.rewards.rule import CONTRIBUTIONS, Reads, Rule, RuleInputs, TraceCounts
from ltrain_transforms.source import Selection


@dataclass(frozen=True, slots=True)
class ConstantRule(Rule):
    """A kind that ltrain does not have: 0.25 for each execution with LLM calls."""

    reward: Reward
    reads: ClassVar[Reads] = Reads.CALLS

    def contribute(self, inputs: RuleInputs) -> pl.DataFrame:
        own = inputs.calls.filter(pl.col("kind") == "llm").unique("execution_id")
        rows = own.select(
            "execution_id", rule=pl.lit(self.reward.name), source=pl.lit("rule"), value=0.25
        )
        return pl.concat([CONTRIBUTIONS.to_frame(), rows], how="diagonal_relaxed")

    def looks_at(self) -> str:
        return "executions with calls"

    def count_inputs(self, counts: TraceCounts) -> int:
        return counts.kinds["llm"]

    def why_silent(self, counts: TraceCounts) -> str:
        return "no execution has a call"


def test_every_kind_of_the_recipe_has_a_class() -> None:
    assert list(KINDS) == list(REWARD_KINDS.values())
    for kind, rule in KINDS.items():
        reward = kind.model_construct(name="r")
        assert rule(reward).reward is reward


def test_rewards_come_in_the_order_of_the_recipe(recipe: Recipe) -> None:
    assert [rule.reward.name for rule in rules_of(recipe)] == ["answer", "tool-failed"]
    assert [rule.reward.name for rule in rules_of(recipe, Reads.CALLS)] == ["tool-failed"]
    assert rules_of(recipe, Reads.GROUP) == []


def test_builds_and_reports_need_nothing_else_of_a_kind(
    scene: Any, store: Store, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: dict[Any, Any] = KINDS
    monkeypatch.setitem(kinds, CallReward, ConstantRule)
    for sample in range(2):
        rollout = scene.attempt(sample=sample)
        rollout.llm("write", (1, 2, 3), (4, sample))
        rollout.evaluate(float(sample))
        rollout.close()
    insert_otlp(store, scene.request())
    own = build(store, recipe, tmp_path / "out").table("rewards").filter(rule="tool-failed")
    assert own["value"].to_list() == [0.25, 0.25]
    _, row = report_rules(store, recipe, Selection(run="demo")).rules
    assert (row.looks_at, row.seen, row.fired, row.total) == (
        "executions with calls",
        2,
        2,
        0.5,
    )
