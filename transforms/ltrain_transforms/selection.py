"""Which calls are the trained policy's, and which executions count.

Filters of executions come before credit and decide who is compared; what makes a row unusable comes
after it and changes no advantage.
"""

from collections.abc import Sequence

import polars as pl

from ltrain_transforms import sql
from ltrain_transforms.recipe import Filter, Policy
from ltrain_transforms.tables import DROPS, Table

COUNTING = ("ok", "error", "timeout")
"""Outcomes that are the agent's own."""

REASONS = {
    "superseded": "a later attempt at the same rollout took its place",
    "infra": "it ended by a failure of ours, not of the agent",
    "cancelled": "it was cancelled",
    "incomplete": "not closed by a runner that the recipe trusts, though one dispatched it or "
    "others of its group, or not all spans that ltrain's own processes ended have arrived",
    "withheld": "spans are missing that its agent ended, and filter.failed is 'drop' or the recipe "
    "names no evaluation",
    "failed": "the agent failed or ran out of time, and filter.failed is 'drop'",
    "unrewarded": "none of the recipe's evaluations is there",
}


def trained(*policies: Policy) -> pl.Expr:
    """Say of each of `calls` whether it is a call of one of `policies`, whatever its mode.

    Traffic that did not pass the gateway names no policy; agents, nodes and `where` decide there.
    """
    return pl.any_horizontal(_selects(policy) for policy in policies)


def trained_by(policies: Sequence[Policy]) -> pl.Expr:
    """Name the first of `policies` that selects a call; null: it is environment, never trained.

    Reads the columns of `calls`, and their execution's `mode`.
    """
    named = pl.lit(None, pl.String)
    for policy in reversed(policies):
        of_mode = pl.col("mode").is_in(policy.modes) if policy.modes else pl.lit(True)
        ours = (_selects(policy) & of_mode).fill_null(False)
        named = pl.when(ours).then(pl.lit(policy.name)).otherwise(named)
    return named


def _selects(policy: Policy) -> pl.Expr:
    ours = pl.col("policy").is_null() | (pl.col("policy") == policy.name)
    selects = (pl.col("kind") == "llm") & ours
    if policy.agents:
        selects &= pl.col("agent").is_in(policy.agents) | pl.col("node").is_in(policy.agents)
    if policy.nodes:
        selects &= pl.col("node").is_in(policy.nodes)
    if policy.where is not None:
        selects &= sql.guarded(policy.where)
    return selects.fill_null(False)


def counting(
    executions: pl.DataFrame, rewarded: pl.Series, rule: Filter, *, judged: bool = True
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the executions that are compared, and the others as `DROPS`.

    Args:
        executions: those of whole groups.
        rewarded: ids of the executions that have an outcome.
        judged: whether the recipe names an evaluation; where none does, rules see only what an
            agent shows them, and one that withheld spans cannot be compared.
    """
    outcome, unjudged = pl.col("outcome"), (rule.failed == "drop") | (not judged)
    reason = (
        pl.when("superseded").then(pl.lit("superseded"))
        .when(outcome.is_in(["infra", "cancelled"])).then(outcome)
        .when(incomplete() & ("incomplete" not in rule.allow)).then(pl.lit("incomplete"))
        .when(outcome.is_in(["error", "timeout"]) & (rule.failed == "drop")).then(pl.lit("failed"))
        .when(withheld(rule) & unjudged).then(pl.lit("withheld"))
        .when(~pl.col("execution_id").is_in(rewarded.implode())).then(pl.lit("unrewarded"))
    )  # fmt: skip
    marked = executions.with_columns(reason=reason)
    left_out = marked.filter(pl.col("reason").is_not_null())
    kept = marked.filter(pl.col("reason").is_null()).drop("reason")
    return kept, dropped("executions", left_out, "execution_id", REASONS)


def incomplete() -> pl.Expr:
    """Return of each of `executions` whether it lacks a runner's word or trusted spans.

    Where a runner dispatched executions of a group, one that none dispatched is an agent's
    invention: it would move the group's mean.
    """
    dispatched = pl.col("dispatched").fill_null(False)
    of_runner = pl.col("group_id").is_not_null() & dispatched.any().over("group_id")
    return ~pl.col("complete") | (of_runner & ~dispatched)


def withheld(rule: Filter) -> pl.Expr:
    """Return of each of `executions` whether it counts as failed, for spans that it withheld."""
    return pl.col("withheld") & ("incomplete" not in rule.allow)


def dropped(
    stage: str, frame: pl.DataFrame, id_column: str, reasons: dict[str, str]
) -> pl.DataFrame:
    """Make `DROPS` from the column `reason` of `frame`."""
    drops = frame.select(
        stage=pl.lit(stage),
        id=id_column,
        reason="reason",
        detail=pl.col("reason").replace_strict(reasons, default="", return_dtype=pl.String),
    )
    return DROPS.select(drops.lazy()).collect()


def gathered(table: Table, *frames: pl.DataFrame) -> pl.DataFrame:
    """Put frames of one table together."""
    return pl.concat([table.empty(), *frames])
