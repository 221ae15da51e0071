"""Selection of the trained policies' calls, and of the executions that are compared.

Filters of executions run before credit and decide which executions are compared. Filters of rows
run after credit and change no advantage.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import polars as pl

from ltrain_instrument.identity import HELD_OUT_MODES
from ltrain_transforms import policy_lineage
from ltrain_transforms.recipe import Filter, Policy
from ltrain_transforms.rendering import ServedPolicy
from ltrain_transforms.rules import sql
from ltrain_transforms.tables import DROPS, Table

AGENT_OUTCOMES = ("ok", "error", "timeout")
"""Outcomes that the agent causes."""

REASONS = {
    "held_out": "its mode is test; or it is val, and neither the mode that is read nor a "
    "[[policy]] names it",
    "superseded": "a later attempt at the same rollout took its place",
    "infra": "it ended by a failure of the infrastructure, not of the agent",
    "cancelled": "it was cancelled",
    "incomplete": "not closed by a runner that the recipe trusts, though one dispatched it or "
    "others of its group, or not all spans that ltrain's own processes ended have arrived",
    "withheld": "spans are missing that its agent ended, and filter.failed is 'drop' or the recipe "
    "names no evaluation",
    "failed": "the agent failed or ran out of time, and filter.failed is 'drop'",
    "unrewarded": "it has none of the evaluations that the recipe names",
    "waiting": "it ended after the time until which executions count, or another one of its group "
    "did or still runs; a later build reads it again",
    **policy_lineage.REASONS,
}


@dataclass(frozen=True, slots=True)
class CreditScope:
    """The executions that may get credit."""

    named_modes: Collection[str] = ()
    """The modes that are read by name. Executions of other held-out modes get no credit."""
    lineage: policy_lineage.Lineage | None = None
    """The lineage of the version that is trained. Executions that are outdated for it leave their
    groups before anything is compared."""
    ended_before: int | None = None
    """Unix time in ns: all executions of a group must have ended before it, so that late rewards
    have arrived. None: no such time."""
    served: tuple[ServedPolicy, ...] = ()
    """The policies whose calls without token ids are rendered."""


DEFAULT_SCOPE = CreditScope()


def is_trained(*policies: Policy) -> pl.Expr:
    """Return whether a row of `calls` is a call of one of `policies`, in any mode.

    A call that did not pass the gateway names no policy; agents, nodes and `where` decide there.
    """
    return _first_policy(policies, _selects).is_not_null()


def _is_held_out(named_modes: Collection[str]) -> pl.Expr:
    """Return whether the `mode` of an execution is held out, and not among the named modes."""
    held_out = [mode for mode in HELD_OUT_MODES if mode not in named_modes]
    return pl.col("mode").is_in(held_out).fill_null(False)


def trained_policy(policies: Sequence[Policy], scope: CreditScope = DEFAULT_SCOPE) -> pl.Expr:
    """Return the name of the first of `policies` that selects a call; null: it is never trained.

    Reads the columns of `calls`, and the `mode` of their execution. A policy without `modes` is
    trained on the named modes of `scope` and on those that are not held out.
    """
    unnamed = ~_is_held_out(scope.named_modes)

    def selects(policy: Policy) -> pl.Expr:
        in_mode = pl.col("mode").is_in(policy.modes) if policy.modes else unnamed
        return (_selects(policy) & in_mode).fill_null(False)

    return _first_policy(policies, selects)


def _first_policy(policies: Sequence[Policy], selects: Callable[[Policy], pl.Expr]) -> pl.Expr:
    """Return the name of the first policy that selects a call; null if that is a frozen one."""
    name = pl.lit(None, pl.String)
    for policy in reversed(policies):
        own = pl.lit(None if policy.frozen else policy.name, pl.String)
        name = pl.when(selects(policy)).then(own).otherwise(name)
    return name


def _selects(policy: Policy) -> pl.Expr:
    names = (policy.name, *policy.imitates)
    named = pl.col("policy").is_null() | pl.col("policy").is_in(names)
    selects = (pl.col("kind") == "llm") & named
    if policy.agents:
        selects &= pl.col("agent").is_in(policy.agents) | pl.col("node").is_in(policy.agents)
    if policy.nodes:
        selects &= pl.col("node").is_in(policy.nodes)
    if policy.where is not None:
        selects &= sql.predicate_expression(policy.where)
    return selects.fill_null(False)


def select_executions(
    executions: pl.DataFrame,
    rewarded: pl.Series,
    rule: Filter,
    scope: CreditScope = DEFAULT_SCOPE,
    outdated: pl.DataFrame | None = None,
    *,
    judged: bool = True,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the executions that are compared, and the others as `DROPS`.

    Args:
        executions: all of each group.
        rewarded: ids of the executions that have an outcome.
        outdated: `OUTDATED`, the executions that must not train the version.
        judged: whether the recipe names an evaluation. Without one, the rules read only the spans
            that the agent sent, so an execution that withheld spans is not compared.
    """
    outcome, unjudged = pl.col("outcome"), (rule.failed == "drop") | (not judged)
    outdated = policy_lineage.OUTDATED.to_frame() if outdated is None else outdated
    reason = (
        pl.when("superseded").then(pl.lit("superseded"))
        .when(_is_held_out(scope.named_modes)).then(pl.lit("held_out"))
        .when(outcome.is_in(["infra", "cancelled"])).then(outcome)
        .when(_is_waiting(scope.ended_before)).then(pl.lit("waiting"))
        .when(is_incomplete() & ("incomplete" not in rule.allow)).then(pl.lit("incomplete"))
        .when(outcome.is_in(["error", "timeout"]) & (rule.failed == "drop")).then(pl.lit("failed"))
        .when(has_withheld_spans(rule) & unjudged).then(pl.lit("withheld"))
        .when(~pl.col("execution_id").is_in(rewarded.implode())).then(pl.lit("unrewarded"))
        .otherwise("outdated")
    )  # fmt: skip
    named = outdated.rename({"reason": "outdated"})
    joined = executions.join(named, "execution_id", "left", maintain_order="left")
    marked = joined.with_columns(reason=reason).drop("outdated")
    left_out = marked.filter(pl.col("reason").is_not_null())
    selected = marked.filter(pl.col("reason").is_null()).drop("reason")
    return selected, to_drops("executions", left_out, "execution_id", REASONS)


def _is_waiting(ended_before: int | None) -> pl.Expr:
    """Return whether an execution, or another one of its group, may still change."""
    if ended_before is None:
        return pl.lit(False)
    runs = pl.col("dispatched").fill_null(False) & pl.col("outcome").is_null()
    own = (pl.col("end") > ended_before) | (runs & ~pl.col("superseded"))
    in_group = pl.col("group_id").is_not_null() & own.any().over("group_id")
    return own | in_group


def is_incomplete() -> pl.Expr:
    """Return whether an execution lacks trusted spans, or a runner that dispatched and closed it.

    Where a runner dispatched executions of a group, one that none dispatched was made up by an
    agent: it would move the group's mean.
    """
    dispatched = pl.col("dispatched").fill_null(False)
    of_runner = pl.col("group_id").is_not_null() & dispatched.any().over("group_id")
    return ~pl.col("complete") | (of_runner & ~dispatched)


def has_withheld_spans(rule: Filter) -> pl.Expr:
    """Return whether an execution counts as failed because its agent withheld spans."""
    return pl.col("withheld") & ("incomplete" not in rule.allow)


def to_drops(
    stage: str, frame: pl.DataFrame, id_column: str, reasons: dict[str, str]
) -> pl.DataFrame:
    """Return `DROPS` of the rows of `frame`, by its column `reason`.

    Args:
        reasons: the sentence of each reason.
    """
    drops = frame.select(
        stage=pl.lit(stage),
        id=id_column,
        reason="reason",
        detail=pl.col("reason").replace_strict(reasons, default="", return_dtype=pl.String),
    )
    return DROPS.select(drops.lazy()).collect()


def concat_table(table: Table, *frames: pl.DataFrame) -> pl.DataFrame:
    """Concatenate frames of one table; without frames, return it empty."""
    return pl.concat([table.empty(), *frames])
