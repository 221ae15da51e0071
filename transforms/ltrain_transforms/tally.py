"""What rules give on batches of executions, in columns narrow enough to keep for all of them."""

from collections import Counter
from dataclasses import dataclass, field

import polars as pl

from ltrain_transforms import sql
from ltrain_transforms.contributions import CONTRIBUTIONS, is_call_rule, sql_inputs
from ltrain_transforms.pipeline import observed
from ltrain_transforms.recipe import Recipe, Reward
from ltrain_transforms.rewards import (
    execution_contributions,
    mark_withheld,
    split_contributions,
    with_group_stats,
)
from ltrain_transforms.signals import add_schema_match
from ltrain_transforms.standing import from_rollout_rules, mark_gated
from ltrain_transforms.tables import EXECUTIONS

SUMS = pl.Schema(
    {
        "execution_id": pl.String(),
        "rule": pl.String(),
        "reason": pl.String(),
        "count": pl.Int64(),
        "value": pl.Float64(),
    }
)
"""What a rule gives one execution: how many `CONTRIBUTIONS` of a reason, and their sum."""

WHOLE = ("execution_id", "call_id", "rule", "source", "value")
"""What the outcome of an execution is made from."""


@dataclass(slots=True)
class Unknown:
    """Where a rule's predicate is null."""

    rows: int = 0
    nulls: Counter[str] = field(default_factory=Counter)
    """In how many of them each column that it names is null."""

    def add(self, reward: Reward, rows: pl.DataFrame) -> None:
        """Look at `rows`, which are of the kind that the rule is about."""
        if reward.schema_ is not None:
            rows = add_schema_match(rows, reward.schema_)
        rows = rows.with_columns(**sql.json_path_columns(reward.name, rows.schema, reward.let))
        when = reward.bound(reward.when)
        found = sql.null_rows(rows, when)
        self.rows += found.height
        self.nulls.update({name: found[name].null_count() for name in sql.column_names(when)})

    @property
    def empty(self) -> list[str]:
        """Columns that are null wherever the predicate is."""
        return sorted(name for name, count in self.nulls.items() if count == self.rows)


@dataclass(slots=True)
class Tally:
    """All that was looked at so far."""

    recipe: Recipe
    executions: pl.DataFrame = field(default_factory=EXECUTIONS.empty)
    sums: pl.DataFrame = field(default_factory=SUMS.to_frame)
    whole: pl.DataFrame = field(default_factory=lambda: CONTRIBUTIONS.to_frame().select(WHOLE))
    kinds: Counter[str] = field(default_factory=Counter)
    """Calls of each kind."""
    said: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Evaluations by name and source."""
    spoke: set[str] = field(default_factory=set)
    """Rules that gave anything, even if it does not count."""
    unknown: dict[str, Unknown] = field(default_factory=dict)
    """Of each rule over calls for as long as it gave nothing."""

    def add(self, spans: pl.DataFrame, newest: int | None) -> None:
        """Look at `SPANS` of whole executions; `newest` as in `observed`."""
        found = observed(spans, self.recipe, newest)
        made = execution_contributions(
            self.recipe, found.calls, found.executions, found.evaluations
        )
        given, _ = split_contributions(made)
        own = made.filter(pl.col("reason").ne_missing("unheard"))
        narrow = found.executions.with_columns(pl.col("source_spans").list.tail(1))
        self.executions = pl.concat([self.executions, narrow])
        self.sums = pl.concat([self.sums, summed(own)])
        whole = given.filter(pl.col("call_id").is_null())
        self.whole = pl.concat([self.whole, whole.select(WHOLE)])
        self.kinds.update(found.calls["kind"])
        self.said.update(found.evaluations.select("name", "source").iter_rows())
        self._look(found.calls, set(own["rule"]))

    def _look(self, calls: pl.DataFrame, spoke: set[str]) -> None:
        """See why rules over calls give nothing."""
        self.spoke |= spoke
        asked = (rule for rule in self.recipe.reward if is_call_rule(rule) and not rule.python)
        quiet = [rule for rule in asked if rule.name not in self.spoke]
        seen = sql_inputs(self.recipe, calls) if quiet else calls
        for rule in quiet:
            rows = seen.filter(pl.col("kind") == rule.on)
            self.unknown.setdefault(rule.name, Unknown()).add(rule, rows)

    def settled(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return executions with `GROUP_STATS`, and `SUMS` with rules over them and shut gates."""
        late = [rule for rule in self.recipe.reward if rule.on == "rollout"]
        gates = [rule for rule in self.recipe.reward if rule.gate is not None]
        known = with_group_stats(self.recipe, self.whole, self.executions.sort("execution_id"))
        fired = from_rollout_rules(late, known)
        ruled = [summed(mark_withheld(self.recipe, one, self.executions)) for one in fired]
        made = pl.concat([self.sums, *ruled])
        counts = pl.col("reason").is_null()
        through = mark_gated(gates, made.filter(counts), known).select(SUMS.names())
        every = pl.concat([through, made.filter(~counts)])
        return known, every.sort("execution_id", maintain_order=True)


def summed(made: pl.DataFrame) -> pl.DataFrame:
    """Sum `CONTRIBUTIONS` to `SUMS`."""
    by = made.group_by("execution_id", "rule", "reason", maintain_order=True)
    found = by.agg(pl.len().alias("count"), pl.col("value").sum())
    return found.select(pl.col(name).cast(dtype) for name, dtype in SUMS.items())
