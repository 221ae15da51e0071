"""The kinds of rewards, and the one that takes evaluations."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from ltrain_transforms.recipe import Recipe, Reward, RuleKind
from ltrain_transforms.rewards.group_stats import RolloutRule
from ltrain_transforms.rewards.rule import CONTRIBUTIONS, Reads, Rule, RuleInputs, TraceCounts
from ltrain_transforms.rewards.rule_contributions import CallRule, PythonRule


@dataclass(frozen=True, slots=True)
class EvaluationRule(Rule):
    """The value of an evaluation, by its name and source."""

    reward: Reward
    reads: ClassVar[Reads] = Reads.EVALUATIONS

    def contribute(self, inputs: RuleInputs) -> pl.DataFrame:
        reward = self.reward
        taken = inputs.evaluations.filter(self.takes()).with_columns(
            rule=pl.lit(reward.name),
            value=pl.col("value").clip(reward.min, reward.max) * reward.weight,
            reason=pl.lit(None),
            error=pl.lit(None),
        )
        return taken.select(pl.col(name).cast(dtype) for name, dtype in CONTRIBUTIONS.items())

    def takes(self) -> pl.Expr:
        named = pl.col("name") == self.reward.evaluation
        source = self.reward.from_
        return named if source == "any" else named & (pl.col("source") == source)

    def looks_at(self) -> str:
        return "evaluation"

    def count_inputs(self, counts: TraceCounts) -> int:
        own = (n for (name, _), n in counts.evaluations.items() if name == self.reward.evaluation)
        return sum(own)

    def why_silent(self, counts: TraceCounts) -> str:
        wanted = self.reward.evaluation
        if self.count_inputs(counts):
            sources = ", ".join(sorted(by for name, by in counts.evaluations if name == wanted))
            return (
                f"evaluations named '{wanted}' come from {sources} only, "
                f"and from is '{self.reward.from_}'"
            )
        names = ", ".join(sorted({name for name, _ in counts.evaluations})) or "none"
        return f"no evaluation is named '{wanted}'; names in the traces: {names}"


KINDS: dict[RuleKind, Callable[[Reward], Rule]] = {
    RuleKind.EVALUATION: EvaluationRule,
    RuleKind.CALLS: CallRule,
    RuleKind.ROLLOUT: RolloutRule,
    RuleKind.PYTHON: PythonRule,
}


def rules_of(recipe: Recipe, *reads: Reads) -> list[Rule]:
    """Return the rewards of a recipe that read one of `reads`, in its order; all without any."""
    rules = (KINDS[reward.kind](reward) for reward in recipe.reward)
    return [rule for rule in rules if not reads or rule.reads in reads]
