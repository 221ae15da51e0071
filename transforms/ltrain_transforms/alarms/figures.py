"""The figures of a training wave that alarms read: one row for each wave of a policy.

Most come from the wave's dataset; the others are what the run records of the wave.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import polars as pl

Scan = Callable[[str], pl.LazyFrame]
"""Returns the rows of a table of a dataset."""

LOSS_STAGES = ("executions", "rows")
"""Stages of drops that cost a rollout a call, or all of it."""
SCORE_DIGITS = 9
"""Decimal digits that equal outcomes share; more may differ by the order of a sum."""
BY_DESIGN = ("superseded", "held_out", "waiting", "consumed", "failed", "unchosen")
"""Reasons at these stages that the recipe requests, or that cost no rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFigures:
    """The figures of the dataset of a wave. A figure that cannot be measured is None."""

    lowest: float | None = None
    """The lowest outcome of a rollout."""
    best: float | None = None
    """The highest outcome of a rollout."""
    outcomes: int = 0
    """The number of rollouts with an outcome."""
    commonest: float | None = None
    """The outcome that most rollouts have."""
    commonest_share: float | None = None
    """Share of the rollouts with this outcome."""
    without_spread: float | None = None
    """Share of the groups whose rollouts are all the drop `no_spread`."""
    distinct_answers: float | None = None
    """Number of distinct results of the rollouts, as a share of the rollouts with a result."""
    response_tokens: float | None = None
    """Tokens that the policy generated for a rollout, mean."""
    tools: dict[str, float] = field(default_factory=dict)
    """Calls of each tool in a rollout, mean."""
    lost: dict[str, float] = field(default_factory=dict)
    """By reason of a drop: share of the rollouts that lost a call, or were left out, for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveFigures(DatasetFigures):
    """One row: the figures of a training wave."""

    wave: int
    outcome: float | None = None
    """The evaluations that reward the policy, by their weights, mean of the rollouts."""
    full_outcome: float = 1.0
    """The outcome of a rollout whose rewarded evaluations are all 1."""
    rules: dict[str, float] = field(default_factory=dict)
    """The reward of each rule, mean of the rollouts."""
    others: dict[str, float] = field(default_factory=dict)
    """Each evaluation that does not reward the policy, mean of the rollouts."""
    drift: float | None = None
    """How far the log-probabilities of learner and server differ: the metric `drift_k3`."""
    drift_tokens: float = 0.0
    """The number of tokens in this mean."""
    selective: tuple[str, ...] = ()
    """The sentences of the build on drops that go together with low reward."""


def read_figures(scan: Scan) -> DatasetFigures:
    """Return the figures of a dataset with one training wave."""
    counted = _counted(scan)
    return _figures(scan, counted, _outcomes(scan, counted))


def _figures(scan: Scan, counted: pl.DataFrame, outcomes: pl.Series) -> DatasetFigures:
    executions, drops = scan("executions"), scan("drops")
    commonest, share = _commonest(outcomes)
    ids = pl.col("stage") == "executions"
    superseded = drops.filter(ids, pl.col("reason") == "superseded").select(execution_id="id")
    return DatasetFigures(
        lowest=_number(outcomes.min()),
        best=_number(outcomes.max()),
        outcomes=len(outcomes),
        commonest=commonest,
        commonest_share=share,
        without_spread=_without_spread(counted, drops),
        distinct_answers=_distinct(counted["result"].drop_nulls()),
        response_tokens=_response_tokens(scan, counted),
        tools=_tool_calls(scan("calls"), counted),
        lost=_lost(scan, executions.join(superseded, "execution_id", "anti").collect()),
    )


def read_update(number: int, scan: Scan, selective: tuple[str, ...] = ()) -> WaveFigures:
    """Return the row of an update of an offline run, which has its dataset only.

    Args:
        number: it stands for that of a wave.
        selective: the sentences of the build on drops that go together with low reward.
    """
    counted = _counted(scan)
    outcomes = _outcomes(scan, counted)
    return WaveFigures(
        **asdict(_figures(scan, counted, outcomes)),
        wave=number,
        outcome=_number(outcomes.mean()),
        rules=rule_means(scan),
        selective=selective,
    )


def rule_means(scan: Scan) -> dict[str, float]:
    """Return the mean of each rule's rewards over the executions of a dataset."""
    executions = scan("executions").select("execution_id").collect()
    rules = scan("rewards").filter(pl.col("source") == "rule")
    own = rules.join(executions.lazy(), "execution_id", "semi")
    sums = own.group_by("rule").agg(pl.col("value").sum()).collect()
    return {name: value / max(executions.height, 1) for name, value in sums.iter_rows()}


def _counted(scan: Scan) -> pl.DataFrame:
    """Return the executions that are not left out."""
    left_out = scan("drops").filter(pl.col("stage") == "executions").select(execution_id="id")
    return scan("executions").join(left_out, "execution_id", "anti").collect()


def _outcomes(scan: Scan, counted: pl.DataFrame) -> pl.Series:
    """Return the evaluated reward of each execution; one without an evaluation has 0."""
    judged = scan("rewards").filter(
        pl.col("call_id").is_null(), pl.col("source") != "rule", pl.col("value").is_finite()
    )
    sums = judged.group_by("execution_id").agg(pl.col("value").sum()).collect()
    if sums.is_empty():
        return pl.Series(dtype=pl.Float64)
    joined = counted.join(sums, "execution_id", "left", maintain_order="left")
    return joined["value"].fill_null(0.0)


def _commonest(outcomes: pl.Series) -> tuple[float, float] | tuple[None, None]:
    """Return the outcome that most rollouts have, and their share."""
    counts = outcomes.alias("value").round(SCORE_DIGITS).value_counts().sort("count", "value")
    if counts.is_empty():
        return None, None
    value, count = counts.row(-1)
    return value, count / len(outcomes)


def rollouts_with(scan: Scan, outcome: float) -> pl.LazyFrame:
    """Return `execution_id` of the executions with this outcome, first one of each task."""
    counted = _counted(scan)
    same = counted.filter(_outcomes(scan, counted).round(SCORE_DIGITS) == outcome)
    place = pl.col("execution_id").rank("ordinal").over("task_id")
    return same.sort(place, "execution_id").select("execution_id").lazy()


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _without_spread(counted: pl.DataFrame, drops: pl.LazyFrame) -> float | None:
    flat = drops.filter(pl.col("stage") == "groups", pl.col("reason") == "no_spread")
    ids = flat.select("id").collect()["id"]
    groups = counted.group_by("run_id", "wave", pl.coalesce("task_id", "execution_id")).agg(
        size=pl.len(), flat=pl.col("execution_id").is_in(ids.implode()).all()
    )
    compared = groups.filter(pl.col("size") > 1)
    return _number(compared["flat"].mean())


def _distinct(results: pl.Series) -> float | None:
    return results.n_unique() / len(results) if len(results) else None


def policy_tokens(scan: Scan) -> pl.LazyFrame:
    """Return `execution_id` and the generated `tokens`, of all choices, of each policy call."""
    calls = scan("calls").filter(pl.col("kind") == "llm", pl.col("policy").is_not_null())
    ids = pl.col("response_token_ids").list.eval(pl.element().list.len()).list.sum()
    return calls.select("execution_id", tokens=pl.coalesce(ids.cast(pl.Int64), "output_tokens"))


def _response_tokens(scan: Scan, counted: pl.DataFrame) -> float | None:
    own = policy_tokens(scan).join(counted.lazy(), "execution_id", "semi")
    counts = own.collect()["tokens"]
    return float(counts.sum()) / counted.height if counts.count() else None


def _tool_calls(calls: pl.LazyFrame, counted: pl.DataFrame) -> dict[str, float]:
    own = calls.filter(pl.col("kind") == "tool", pl.col("name").is_not_null()).join(
        counted.lazy().select("execution_id"), "execution_id", "semi"
    )
    counts = own.group_by("name").len().sort("name").collect()
    return {name: count / counted.height for name, count in counts.iter_rows()}


def _lost(scan: Scan, executions: pl.DataFrame) -> dict[str, float]:
    found = drops_by_execution(scan("calls"), scan("drops")).filter(
        pl.col("stage").is_in(LOSS_STAGES), ~pl.col("reason").is_in(BY_DESIGN)
    )
    own = found.join(executions.lazy().select("execution_id"), "execution_id", "semi")
    counts = own.group_by("reason").agg(pl.col("execution_id").n_unique()).sort("reason").collect()
    return {reason: count / executions.height for reason, count in counts.iter_rows()}


def drops_by_execution(calls: pl.LazyFrame, drops: pl.LazyFrame) -> pl.LazyFrame:
    """Return `execution_id`, `stage` and `reason` of each drop that names an execution or a call.

    A call is named by one of its spans. A broken span is in no call, so its drop names the
    execution after the span. An id of something else may be among the ids of executions.
    """
    parts = pl.col("id").str.splitn(":", 2).struct
    named = drops.select("stage", "reason", "id", first=parts[0], rest=parts[1])
    of_span = pl.col("stage") == "spans"
    spans = calls.select("execution_id", first="source_spans").explode("first").drop_nulls()
    columns = ("execution_id", "stage", "reason")
    by_span = named.filter(~of_span).join(spans, "first").select(columns)
    by_execution = named.filter(~of_span).select(execution_id="id", stage="stage", reason="reason")
    broken = named.filter(of_span).select(execution_id="rest", stage="stage", reason="reason")
    return pl.concat([by_span, by_execution, broken]).drop_nulls().unique()
