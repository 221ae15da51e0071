"""Spans and calls -> executions: what was attempted, how it ended, and whether all arrived."""

from bisect import bisect_right

import polars as pl

from ltrain_instrument import attributes
from ltrain_transforms.source import REPORTS
from ltrain_transforms.tables import EXECUTIONS

BOOKKEEPING = (attributes.SPAN_DISPATCH, *REPORTS)


def executions(spans: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Make `executions` from `SPANS` and `calls`."""
    joined = (
        _told(spans)
        .join(_arrived(spans), "execution_id", "left", validate="1:1")
        .join(_counted(calls), "execution_id", "left", validate="1:1")
        .join(_critical_paths(calls), "execution_id", "left", validate="1:1")
    )
    rank = pl.col("start").rank("ordinal").over("rollout_id")
    numbered = joined.with_columns(
        attempt=pl.when(pl.col("rollout_id").is_not_null()).then(rank).otherwise(1),
        group_id=pl.concat_str("run_id", "mode", "wave", "task_id", separator="/"),
        # a product: of a quotient polars gives another last digit where there is one row
        wall=(pl.col("end") - pl.col("start")) * 1e-9,
        spans_expected=pl.col("spans_expected").fill_null(0),
        spans_seen=pl.col("spans_seen").fill_null(0),
        complete=pl.col("closed") & pl.col("arrived").fill_null(True),
        superseded=pl.col("rollout_id").is_not_null() & (rank < rank.max().over("rollout_id")),
        llm_calls=pl.col("llm_calls").fill_null(0),
        tool_calls=pl.col("tool_calls").fill_null(0),
        critical_path=pl.col("critical_path").fill_null(0.0),
    )
    return EXECUTIONS.select(numbered.sort("execution_id").lazy()).collect()


def _told(spans: pl.DataFrame) -> pl.DataFrame:
    """One row an execution: identity, outcome and times, from whichever span says them."""
    identity = ("rollout_id", "run_id", "task_id", "domain", "mode", "wave", "sample_index")
    name = pl.col("name")
    dispatched, reported = name == attributes.SPAN_DISPATCH, name == attributes.SPAN_PROCESS
    # nobody closes a rollout that nobody dispatched: its processes' reports must do
    closed = (name == attributes.SPAN_ROLLOUT).any() | (~dispatched.any() & reported.any())
    timed = name != attributes.SPAN_DISPATCH
    return spans.group_by("execution_id").agg(
        *(pl.col(one).drop_nulls().first() for one in identity),
        outcome=pl.col("outcome").drop_nulls().last(),
        start=pl.col("start").filter(timed).min().fill_null(pl.col("start").min()),
        end=pl.col("end").max(),
        traces=pl.col("trace_id").n_unique(),
        closed=closed | pl.col("rollout_id").is_null().all(),
        source_spans=pl.col("span_id").filter(name.is_in(BOOKKEEPING)),
    )


def _arrived(spans: pl.DataFrame) -> pl.DataFrame:
    """Compare, process by process, the spans that it reported with those that are there."""
    report = pl.col("name").is_in(REPORTS)
    return (
        spans.filter(pl.col("rollout_id").is_not_null())
        .group_by("execution_id", "process")
        .agg(expected=pl.col("reported").max(), seen=(~report).sum())
        .filter(pl.col("expected").is_not_null())
        .group_by("execution_id")
        .agg(
            spans_expected=pl.col("expected").sum(),
            spans_seen=pl.min_horizontal("expected", "seen").sum(),
            arrived=(pl.col("seen") >= pl.col("expected")).all(),
        )
    )


def _counted(calls: pl.DataFrame) -> pl.DataFrame:
    kind = pl.col("kind")
    return calls.group_by("execution_id").agg(
        llm_calls=(kind == "llm").sum(), tool_calls=(kind == "tool").sum()
    )


def _critical_paths(calls: pl.DataFrame) -> pl.DataFrame:
    work = calls.filter(~pl.col("kind").is_in(["agent", "node"])).sort("end")
    paths = {
        execution: longest_chain(group["start"].to_list(), group["end"].to_list()) / 1e9
        for (execution,), group in work.group_by("execution_id", maintain_order=True)
    }
    columns = {"execution_id": list(paths), "critical_path": list(paths.values())}
    return pl.DataFrame(columns, {"execution_id": pl.String, "critical_path": pl.Float64})


def longest_chain(starts: list[int], ends: list[int]) -> int:
    """Give the longest total of intervals that follow each other, given in order of their ends."""
    best = [0]
    for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
        before = best[bisect_right(ends, start, 0, index)]
        best.append(max(best[-1], before + end - start))
    return best[-1]
