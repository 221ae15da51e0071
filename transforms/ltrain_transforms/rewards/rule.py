"""The protocol of every kind of reward, and the inputs of rewards.

A kind is a class of its keys and their checks in `recipe/reward.py`, with a row in `REWARD_KINDS`,
and a class with this protocol in `kinds.py`, with a row in `KINDS`. Builds and reports call only
the protocol.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Protocol

import polars as pl

from ltrain_transforms.recipe import Reward
from ltrain_transforms.rules import add_schema_match, sql
from ltrain_transforms.tables import CALLS, DROPS, EVALUATIONS, SIGNALS

CONTRIBUTIONS = pl.Schema(
    {
        "execution_id": pl.String(),
        "call_id": pl.String(),
        "rule": pl.String(),
        "source": pl.String(),
        "value": pl.Float64(),
        "evidence": pl.String(),
        "reason": pl.String(),
        "error": pl.String(),
    }
)
"""`REWARDS`, with the `reason` why a contribution does not count (else null) and the `error` of a
Python rule."""


class Reads(StrEnum):
    """The input of a kind of reward; it decides when the reward contributes."""

    EVALUATIONS = "evaluations"
    """Evaluations of one execution, which then has an outcome."""
    CALLS = "calls"
    """The calls of one execution."""
    GROUP = "group"
    """Executions with the statistics of their group: after all executions of the wave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleInputs:
    """The frames that rewards read."""

    executions: pl.DataFrame
    """`EXECUTIONS`; for rewards that read the group with `GROUP_STATS`."""
    calls: pl.DataFrame = field(default_factory=CALLS.empty)
    sql_calls: pl.DataFrame = field(default_factory=pl.DataFrame)
    """`sql_inputs` of the calls."""
    signals: pl.DataFrame = field(default_factory=SIGNALS.empty)
    ambiguous: pl.DataFrame = field(default_factory=DROPS.empty)
    """`DROPS`: log records of no span that several calls may have written."""
    evaluations: pl.DataFrame = field(default_factory=EVALUATIONS.empty)
    discount: float = 1.0
    """gamma a turn, for a potential."""


@dataclass(slots=True)
class NullPredicates:
    """The rows on which the predicate of a rule is null."""

    rows: int = 0
    nulls: Counter[str] = field(default_factory=Counter)
    """By column of the predicate: on how many of these rows it is null."""

    def add(self, reward: Reward, rows: pl.DataFrame) -> None:
        """Count `rows`, which are of the kind that the rule reads."""
        if reward.schema_ is not None:
            rows = add_schema_match(rows, reward.schema_)
        rows = rows.with_columns(**sql.json_path_columns(reward.name, rows.schema, reward.let))
        when = reward.bound(reward.when)
        null_rows = sql.null_rows(rows, when)
        self.rows += null_rows.height
        self.nulls.update({name: null_rows[name].null_count() for name in sql.column_names(when)})

    def explain(self, inputs: int, what: str) -> str:
        """Return why a predicate is true on none of `inputs` rows, which `what` names."""
        summary = f"`when` is true for none of {inputs} {what}"
        if self.rows == 0:
            return summary
        null_columns = sorted(name for name, count in self.nulls.items() if count == self.rows)
        columns = ", ".join(null_columns) or "a value"
        return f"{summary}, and null for {self.rows}, which lack {columns}"


@dataclass(frozen=True, slots=True)
class TraceCounts:
    """The counts of the traces, for the report on a reward."""

    executions: pl.DataFrame
    """With the columns of `GROUP_STATS`."""
    kinds: Counter[str]
    """Count of calls by kind."""
    signals: int
    """Count of signals, if a rule reads them."""
    evaluations: Counter[tuple[str, str]]
    """Count of evaluations by name and source."""
    null_predicates: dict[str, NullPredicates]
    """By name of a rule over calls that never made a contribution."""


class Rule(Protocol):
    """One reward of a recipe."""

    reward: Reward
    reads: ClassVar[Reads]

    def contribute(self, inputs: RuleInputs) -> pl.DataFrame:
        """Return the reward's `CONTRIBUTIONS`."""
        ...

    def looks_at(self) -> str:
        """Return what the reward reads, as a report names it."""
        ...

    def count_inputs(self, counts: TraceCounts) -> int:
        """Return how many of these the traces hold."""
        ...

    def why_silent(self, counts: TraceCounts) -> str:
        """Return why the reward makes no contribution."""
        ...

    def takes(self) -> pl.Expr:
        """Return whether the reward takes an evaluation."""
        return pl.lit(False)

    def add_nulls(self, inputs: RuleInputs, nulls: NullPredicates) -> None:
        """Count the calls on which the rule's predicate is null."""
        return  # most kinds have no predicate on calls
