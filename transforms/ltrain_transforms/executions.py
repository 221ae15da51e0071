"""Spans and calls -> executions: what was attempted, how it ended, and whether all arrived.

An execution is over when its runner closed it; when nobody dispatched it and its processes have
reported; or, for traffic that nobody closes, when it has been idle for `source.idle_timeout`
seconds.
"""

from bisect import bisect_right

import polars as pl

from ltrain_instrument import attributes
from ltrain_transforms.roles import Role, is_impostor
from ltrain_transforms.source import REPORT_SPANS
from ltrain_transforms.tables import EXECUTIONS

BOOKKEEPING = (attributes.SPAN_DISPATCH, *REPORT_SPANS)
HOLDERS = ("agent", "node")
"""Kinds of calls whose time is their callees', where they have any."""
MAX_SPANS = (1 << 31) - 1
"""Spans to which a report is cut: what an agent writes must fit its column."""
SLACK = 2_000_000
"""Nanoseconds by which a call may seem to outlast its successor's start: see `grouping.SLACK`."""


def idle_cutoff(newest: int | None, idle: float | None) -> int | None:
    """Give the time before which an idle execution must have ended to be over.

    Args:
        newest: when the newest of all spans that were read ended, nanoseconds; not this machine's
            clock, so the same spans always give the same rows.
        idle: `source.idle_timeout`, seconds.
    """
    return None if newest is None or idle is None else newest - int(idle * 1e9)


def executions(spans: pl.DataFrame, calls: pl.DataFrame, over: int | None = None) -> pl.DataFrame:
    """Make `executions` from `SPANS` and `calls`.

    Attempts are ranked among those that are there; `ranked` does it over all batches.

    Args:
        over: what `cutoff` gives. None: what nobody dispatches and nobody closes is over as it is.
    """
    joined = (
        _told(spans)
        .join(_arrived(spans), "execution_id", "left", validate="1:1")
        .join(_counted(calls), "execution_id", "left", validate="1:1")
        .join(_critical_paths(calls), "execution_id", "left", validate="1:1")
    )
    # a product: of a quotient polars gives another last digit where there is one row
    wall = (pl.col("end") - pl.col("start")) * 1e-9
    counted = joined.with_columns(
        closed_by=_closed_by(over),
        group_id=pl.concat_str("run_id", "mode", "wave", "task_id", separator="/"),
        wall=pl.when(wall >= 0).then(wall),
        spans_expected=pl.col("spans_expected").fill_null(0),
        spans_seen=pl.col("spans_seen").fill_null(0),
        llm_calls=pl.col("llm_calls").fill_null(0),
        tool_calls=pl.col("tool_calls").fill_null(0),
        attempt=1,
        superseded=False,
    )
    traffic = pl.col("rollout_id").is_null() & (over is None)
    lost = ~pl.col("agent_arrived").fill_null(True)
    over_now = pl.col("closed_by").is_not_null() | traffic
    marked = counted.with_columns(
        dispatched=pl.col("dispatched") | pl.col("closed"),
        withheld=lost & pl.col("closed"),
        complete=over_now & pl.col("arrived").fill_null(True) & (pl.col("closed") | ~lost),
    )
    return rank_attempts(EXECUTIONS.select(marked.lazy()).collect())


def rank_attempts(executions: pl.DataFrame) -> pl.DataFrame:
    """Rank the attempts at each rollout by their start; all but the last are superseded.

    Those that no runner dispatched come before those that one did, and take the place of none.
    Attempts that lie in different batches are ranked when the batches are put together.
    """
    named = pl.col("rollout_id").is_not_null()
    rank = pl.struct("dispatched", "start", "execution_id").rank("ordinal").over("rollout_id")
    return executions.with_columns(
        attempt=pl.when(named).then(rank).otherwise(1).cast(pl.Int32),
        superseded=named & (rank < pl.len().over("rollout_id")),
    ).sort("execution_id")


def _closed_by(over: int | None) -> pl.Expr:
    idle = ~pl.col("dispatched") & (pl.col("end") <= over) if over is not None else pl.lit(False)
    return (
        pl.when("closed")
        .then(pl.lit("runner"))
        # nobody closes a rollout that nobody dispatched: its processes' reports must do
        .when(~pl.col("dispatched") & pl.col("told"))
        .then(pl.lit("processes"))
        .when(idle)
        .then(pl.lit("idle"))
    )


def _told(spans: pl.DataFrame) -> pl.DataFrame:
    """One row an execution: identity, outcome and times, from whichever span says them."""
    identity = ("rollout_id", "run_id", "task_id", "domain", "mode", "wave", "sample_index")
    name, runner = pl.col("name"), (pl.col("role") == Role.RUNNER).fill_null(False)
    believed = ~is_impostor().fill_null(False)
    marked = spans.with_columns(
        dispatched=runner & (name == attributes.SPAN_DISPATCH),
        closed=runner & (name == attributes.SPAN_ROLLOUT),
        told=name == attributes.SPAN_PROCESS,
        bookkeeping=pl.when(name.is_in(BOOKKEEPING) & believed).then("span_id"),
        began=pl.when(name != attributes.SPAN_DISPATCH).then("start"),
        runner=runner,
    )
    return marked.group_by("execution_id").agg(
        # a runner knows what it dispatched; an agent could name an easier task
        *(
            pl.coalesce(
                pl.col(one).filter("runner").drop_nulls().first(),
                pl.col(one).drop_nulls().first(),
            ).alias(one)
            for one in identity
        ),
        pl.col("session_id").drop_nulls().first(),
        pl.col("dispatched", "closed", "told").any(),
        outcome=pl.col("outcome").filter("runner").drop_nulls().last(),
        start=pl.coalesce(pl.col("began").min(), pl.col("start").min()),
        end=pl.col("end").max(),
        traces=pl.col("trace_id").n_unique(),
        source_spans=pl.col("bookkeeping").drop_nulls(),
    )


def _arrived(spans: pl.DataFrame) -> pl.DataFrame:
    """Compare, process by process, the spans that it reported with those that are there.

    A process is what one kind of sender says: no agent speaks for a runner or a gateway.
    """
    report = pl.col("name").is_in(REPORT_SPANS)
    whole = pl.col("seen") >= pl.col("expected")
    return (
        spans.filter(pl.col("rollout_id").is_not_null())
        .with_columns(believed=~is_impostor().fill_null(False))
        .group_by("execution_id", "process", trusted=pl.col("trusted").fill_null(False))
        .agg(
            expected=pl.col("reported").filter("believed").max().clip(0, MAX_SPANS),
            seen=(~report).sum(),
        )
        .filter(pl.col("expected").is_not_null())
        .group_by("execution_id")
        .agg(
            spans_expected=pl.col("expected").sum().clip(0, MAX_SPANS),
            spans_seen=pl.min_horizontal("expected", "seen").sum(),
            arrived=whole.filter("trusted").all(),
            agent_arrived=whole.filter(~pl.col("trusted")).all(),
        )
    )


def _counted(calls: pl.DataFrame) -> pl.DataFrame:
    kind = pl.col("kind")
    return calls.group_by("execution_id").agg(
        llm_calls=(kind == "llm").sum(), tool_calls=(kind == "tool").sum()
    )


def _critical_paths(calls: pl.DataFrame) -> pl.DataFrame:
    """Give the longest chain of calls that do the work; null where a clock ran backwards.

    Agents and nodes are left out where they hold other calls. A call that lies in another, as a
    sub-agent's in a tool, is in no chain with it, so no time counts twice.
    """
    holding = calls.select(call_id="parent_id").drop_nulls().unique()
    alone = calls.join(holding, "call_id", "anti")
    held = pl.col("kind").is_in(HOLDERS)
    work = pl.concat([calls.filter(~held).select(_TIMES), alone.filter(held).select(_TIMES)])
    found = work.sort("end").group_by("execution_id", maintain_order=True).agg("start", "end")
    times = zip(found["start"].to_list(), found["end"].to_list(), strict=True)
    paths = [longest_chain(starts, ends, SLACK) for starts, ends in times]
    seconds = [path / 1e9 if path is not None else None for path in paths]
    return found.select("execution_id", critical_path=pl.Series(seconds, dtype=pl.Float64))


_TIMES = ("execution_id", "start", "end")


def longest_chain(starts: list[int], ends: list[int], slack: int = 0) -> int | None:
    """Give the longest total of intervals that follow each other, given in order of their ends.

    None where one ends before it starts.

    Args:
        slack: by how much one may begin before its predecessor has ended.
    """
    best = [0]
    for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if end < start:
            return None
        before = best[bisect_right(ends, start + slack, 0, index)]
        best.append(max(best[-1], before + end - start))
    return best[-1]
