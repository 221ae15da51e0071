"""The behaviour of each kind of reward: its contributions, and its lines in a report."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl

from ltrain_transforms.recipe import (
    CallReward,
    EvaluationReward,
    PythonReward,
    Recipe,
    Reward,
    RolloutReward,
    SignalReward,
)
from ltrain_transforms.rewards.rule import (
    CONTRIBUTIONS,
    NullPredicates,
    Reads,
    Rule,
    RuleInputs,
    TraceCounts,
)
from ltrain_transforms.rewards.rule_contributions import (
    credit_matches,
    invalid_value,
    rule_contributions,
    run_sql,
)
from ltrain_transforms.rules import python_rules, sql
from ltrain_transforms.tables import CALLS, EXEMPLAR
from ltrain_transforms.traces import Role


@dataclass(frozen=True, slots=True)
class EvaluationRule(Rule):
    """The value of an evaluation, by its name and source."""

    reward: EvaluationReward
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
        if source != "any":
            return named & (pl.col("source") == source)
        of_runner = pl.col("source") == Role.RUNNER
        judged_by_runner = of_runner.any().over("execution_id", "call_id", "name")
        return named & (of_runner | ~judged_by_runner)

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


@dataclass(frozen=True, slots=True)
class CallRule(Rule):
    """An SQL rule over calls of one kind."""

    reward: CallReward
    reads: ClassVar[Reads] = Reads.CALLS

    def contribute(self, inputs: RuleInputs) -> pl.DataFrame:
        results = run_sql(self.reward, inputs.sql_calls)
        return rule_contributions(self.reward, results, inputs.discount)

    def looks_at(self) -> str:
        return str(self.reward.on)

    def count_inputs(self, counts: TraceCounts) -> int:
        return counts.kinds[str(self.reward.on)]

    def why_silent(self, counts: TraceCounts) -> str:
        inputs, kind = self.count_inputs(counts), self.reward.on
        if inputs == 0:
            kinds = ", ".join(sorted(counts.kinds)) or "none"
            return f"the traces hold no {kind} call; kinds in the traces: {kinds}"
        return counts.null_predicates[self.reward.name].explain(inputs, f"{kind} calls")

    def add_nulls(self, inputs: RuleInputs, nulls: NullPredicates) -> None:
        nulls.add(self.reward, inputs.sql_calls.filter(pl.col("kind") == self.reward.on))


@dataclass(frozen=True, slots=True)
class SignalRule(Rule):
    """An SQL rule over signals; of several in a call that match the first counts."""

    reward: SignalReward
    reads: ClassVar[Reads] = Reads.CALLS

    def contribute(self, inputs: RuleInputs) -> pl.DataFrame:
        rule, signals = self.reward, self._signals(inputs)
        rows = signals.with_columns(**sql.json_path_columns(rule.name, signals.schema, rule.let))
        matches = sql.evaluate_rule(rows, rule.bound(rule.when), rule.bound(str(rule.value)))
        first = matches.unique(["execution_id", "call_id"], keep="first", maintain_order=True)
        found = first.select("execution_id", "call_id", "value", "evidence")
        credited = found.join(inputs.sql_calls, ["execution_id", "call_id"], "left")
        results = credit_matches(rule, credited, inputs.sql_calls)
        return rule_contributions(rule, results, inputs.discount)

    def looks_at(self) -> str:
        return "signal"

    def count_inputs(self, counts: TraceCounts) -> int:
        return counts.signals

    def why_silent(self, counts: TraceCounts) -> str:
        inputs = self.count_inputs(counts)
        if inputs == 0:
            return "the traces have only spans of calls; log records are read with [source] logs"
        return counts.null_predicates[self.reward.name].explain(inputs, "signals")

    def add_nulls(self, inputs: RuleInputs, nulls: NullPredicates) -> None:
        nulls.add(self.reward, self._signals(inputs))

    def _signals(self, inputs: RuleInputs) -> pl.DataFrame:
        """Return the signals without the exemplars that other rules alone read."""
        reads = pl.lit(self.reward.metrics != ())
        return inputs.signals.filter(reads | (pl.col("record") != EXEMPLAR))


@dataclass(frozen=True, slots=True)
class RolloutRule(Rule):
    """An SQL rule over executions with `group_stats`."""

    reward: RolloutReward
    reads: ClassVar[Reads] = Reads.GROUP

    def contribute(self, inputs: RuleInputs) -> pl.DataFrame:
        rule, stats = self.reward, inputs.executions
        rows = stats.with_columns(**sql.json_path_columns(rule.name, stats.schema, rule.let))
        matches = sql.evaluate_rule(rows, rule.bound(rule.when), rule.bound(str(rule.value)))
        contributions = matches.with_columns(
            reason=invalid_value(),
            error=pl.lit(None, pl.String),
            call_id=pl.lit(None, pl.String),
            rule=pl.lit(rule.name),
            source=pl.lit("rule"),
            value=pl.col("value").clip(rule.min, rule.max) * rule.weight,
            evidence=pl.coalesce(pl.col("source_spans").list.last(), "execution_id"),
        )
        columns = (pl.col(name).cast(dtype) for name, dtype in CONTRIBUTIONS.items())
        return contributions.select(columns)

    def looks_at(self) -> str:
        return "rollout"

    def count_inputs(self, counts: TraceCounts) -> int:
        return counts.executions.height

    def why_silent(self, counts: TraceCounts) -> str:
        nulls = NullPredicates()
        nulls.add(self.reward, counts.executions)
        return nulls.explain(self.count_inputs(counts), "executions")


@dataclass(frozen=True, slots=True)
class PythonRule(Rule):
    """A Python function over the calls of an execution."""

    reward: PythonReward
    reads: ClassVar[Reads] = Reads.CALLS

    def contribute(self, inputs: RuleInputs) -> pl.DataFrame:
        rule, calls = self.reward, inputs.calls.select(CALLS.schema.names())
        results = python_rules.run_python_rule(rule.name, rule.python, rule.params, calls)
        return rule_contributions(rule, results.with_columns(credits=pl.lit(True)), inputs.discount)

    def looks_at(self) -> str:
        return "python"

    def count_inputs(self, counts: TraceCounts) -> int:
        return counts.executions.height

    def why_silent(self, counts: TraceCounts) -> str:
        return "the function returns no contribution for any execution"


KINDS: dict[type[Reward], Callable[[Any], Rule]] = {
    EvaluationReward: EvaluationRule,
    CallReward: CallRule,
    SignalReward: SignalRule,
    RolloutReward: RolloutRule,
    PythonReward: PythonRule,
}
"""The behaviour of each kind of `REWARD_KINDS`."""


def rules_of(recipe: Recipe, *reads: Reads) -> list[Rule]:
    """Return the rewards of a recipe that read one of `reads`, in its order; all without any."""
    rules = (KINDS[type(reward)](reward) for reward in recipe.reward)
    return [rule for rule in rules if not reads or rule.reads in reads]
