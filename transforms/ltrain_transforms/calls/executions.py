"""Spans and calls -> executions: identity, outcome, and whether all spans have arrived.

An execution is finished in one of three ways: its runner closed it; no runner dispatched it and its
processes have reported; or no runner closes it and it was idle for `source.idle_timeout` seconds.
"""

from bisect import bisect_right

import polars as pl

from ltrain_instrument import attributes
from ltrain_instrument.identity import HELD_OUT_MODES
from ltrain_transforms.calls.task_keys import request_keys
from ltrain_transforms.tables import EXECUTION_CONTENTS, EXECUTIONS
from ltrain_transforms.traces import Role, is_impostor

REPORT_SPANS = (attributes.SPAN_PROCESS, attributes.SPAN_ROLLOUT)
"""Names of the spans that report how many spans their process ended."""
BOOKKEEPING = (attributes.SPAN_DISPATCH, *REPORT_SPANS)
LATE = (attributes.SPAN_EVALUATION, attributes.SPAN_PROCESS)
"""Names of spans that may begin long after the execution has ended."""
CONTAINERS = ("agent", "node")
"""Kinds of calls whose time is that of the calls inside them, if there are any."""
CONTENTS = dict(
    zip(
        EXECUTION_CONTENTS,
        (attributes.TASK_INPUT, attributes.TASK_FIELDS, attributes.RESULT),
        strict=True,
    )
)
"""The columns whose values are attributes of the runner's spans."""
MAX_SPANS = (1 << 31) - 1
"""Upper bound of reported spans: an agent may write any number, and it must fit the column."""
SLACK = 2_000_000
"""Nanoseconds by which a call may seem to outlast its successor's start: see `call.SLACK`."""


def idle_cutoff(newest: int | None, idle_timeout: float | None) -> int | None:
    """Return the time in nanoseconds before which an idle execution must have ended.

    Args:
        newest: the latest end of all spans that were read, in nanoseconds. This is not the clock
            of this machine, so the same spans always give the same rows.
        idle_timeout: `source.idle_timeout`, in seconds.
    """
    if newest is None or idle_timeout is None:
        return None
    return newest - int(idle_timeout * 1e9)


def executions(spans: pl.DataFrame, calls: pl.DataFrame, cutoff: int | None = None) -> pl.DataFrame:
    """Return `EXECUTIONS` made from `SPANS` and `CALLS`.

    Attempts are ranked within these spans; `rank_attempts` ranks those of all batches.

    Args:
        cutoff: the result of `idle_cutoff`; None: traffic that nobody closes counts as finished.
    """
    identities = _identities(spans)
    unnamed = identities.filter(pl.col("task_id").is_null()).select("execution_id")
    joined = (
        identities.join(
            request_keys(calls.join(unnamed, "execution_id", "semi")), "execution_id", "left"
        )
        .join(_contents(spans), "execution_id", "left", validate="1:1")
        .join(_arrivals(spans), "execution_id", "left", validate="1:1")
        .join(_call_counts(calls), "execution_id", "left", validate="1:1")
        .join(_critical_paths(calls), "execution_id", "left", validate="1:1")
    )
    # a product: for a quotient Polars has another last digit where there is one row
    wall = (pl.col("end") - pl.col("start")) * 1e-9
    counted = joined.with_columns(
        closed_by=_closed_by(cutoff),
        task_key=pl.coalesce("task_id", "request_key"),
        group_id=pl.concat_str("run_id", "mode", "wave", "task_id", separator="/"),
        wall=pl.when(wall >= 0).then(wall),
        spans_expected=pl.col("spans_expected").fill_null(0),
        spans_seen=pl.col("spans_seen").fill_null(0),
        altered=pl.col("altered").fill_null(False),
        llm_calls=pl.col("llm_calls").fill_null(0),
        tool_calls=pl.col("tool_calls").fill_null(0),
        attempt=1,
        superseded=False,
    )
    unclosed_traffic = pl.col("rollout_id").is_null() & (cutoff is None)
    lost = ~pl.col("agent_arrived").fill_null(True)
    finished = pl.col("closed_by").is_not_null() | unclosed_traffic
    marked = counted.with_columns(
        dispatched=pl.col("dispatched") | pl.col("closed"),
        withheld=lost & pl.col("closed"),
        complete=finished & pl.col("arrived").fill_null(True) & (pl.col("closed") | ~lost),
    )
    return rank_attempts(EXECUTIONS.select(marked.lazy()).collect())


def rank_attempts(executions: pl.DataFrame) -> pl.DataFrame:
    """Rank the attempts at each rollout; all but the last are superseded.

    They rank by the numbers that their runner gave them, and without numbers by their start: clocks
    may step between two attempts. Attempts that no runner dispatched rank before dispatched ones,
    so they never supersede one. Attempts in different batches are ranked when the batches are
    combined.
    """
    named = pl.col("rollout_id").is_not_null()
    number = pl.col("execution_id").str.extract(r"\.(\d+)$").cast(pl.Int64, strict=False)
    order = pl.struct("dispatched", number.fill_null(0).alias("number"), "start", "execution_id")
    rank = order.rank("ordinal").over("rollout_id")
    return executions.with_columns(
        attempt=pl.when(named).then(rank).otherwise(1).cast(pl.Int32),
        superseded=named & (rank < pl.len().over("rollout_id")),
    ).sort("execution_id")


def _closed_by(cutoff: int | None) -> pl.Expr:
    ended = pl.lit(False) if cutoff is None else pl.col("end") <= cutoff
    idle = ~pl.col("dispatched") & ended
    return (
        pl.when("closed")
        .then(pl.lit("runner"))
        # no runner closes a rollout that none dispatched: the reports of its processes suffice
        .when(~pl.col("dispatched") & pl.col("process_reported"))
        .then(pl.lit("processes"))
        .when(idle)
        .then(pl.lit("idle"))
    )


def _identities(spans: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each execution: identity, outcome and times, from any of its spans."""
    identity = ("rollout_id", "run_id", "task_id", "domain", "mode", "wave", "sample_index")
    name, runner = pl.col("name"), (pl.col("role") == Role.RUNNER).fill_null(False)
    believed = ~is_impostor().fill_null(False)
    is_held_out = pl.col("mode").is_in(HELD_OUT_MODES)
    marked = spans.with_columns(
        dispatched=runner & (name == attributes.SPAN_DISPATCH),
        closed=runner & (name == attributes.SPAN_ROLLOUT),
        process_reported=name == attributes.SPAN_PROCESS,
        bookkeeping=pl.when(name.is_in(BOOKKEEPING) & believed).then("span_id"),
        began=pl.when(name != attributes.SPAN_DISPATCH).then("start"),
        # an evaluation may be written long after the end, by `ltrain score` or as feedback, and the
        # last report of a worker process when it exits
        ended=pl.when(~name.is_in(LATE)).then("end"),
        runner=runner,
    )
    return marked.group_by("execution_id").agg(
        # the runner's word comes first: an agent could name an easier task
        *(
            pl.coalesce(
                pl.col(one).filter("runner").drop_nulls().first(),
                # without a runner, one span of a held-out rollout makes it one
                *([pl.col(one).filter(is_held_out).first()] if one == "mode" else []),
                pl.col(one).drop_nulls().first(),
            ).alias(one)
            for one in identity
        ),
        pl.col("session_id").drop_nulls().first(),
        pl.col("dispatched", "closed", "process_reported").any(),
        outcome=pl.col("outcome").filter("runner").drop_nulls().last(),
        start=pl.coalesce(pl.col("began").min(), pl.col("start").min()),
        end=pl.coalesce(pl.col("ended").max(), pl.col("end").max()),
        traces=pl.col("trace_id").n_unique(),
        source_spans=pl.col("bookkeeping").drop_nulls(),
    )


def _contents(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the task and the result of each execution that a runner closed or dispatched."""
    names = (attributes.SPAN_DISPATCH, attributes.SPAN_ROLLOUT)
    by_runner = spans.filter(pl.col("role") == Role.RUNNER, pl.col("name").is_in(names))
    attribute = pl.col("attributes").map
    shortened = attribute.get(attributes.CUT).str.contains_any(list(CONTENTS.values()))
    redacted = attribute.get(attributes.REDACTED) == "true"
    return by_runner.group_by("execution_id").agg(
        *(
            attribute.get(name).drop_nulls().last().alias(column)
            for column, name in CONTENTS.items()
        ),
        altered=(shortened.fill_null(False) | redacted.fill_null(False)).any(),
    )


def _arrivals(spans: pl.DataFrame) -> pl.DataFrame:
    """Compare, for each process, the number of spans it reported with the number that arrived.

    Trusted and untrusted spans of one process are counted apart: an agent cannot report for a
    runner or a gateway.
    """
    report = pl.col("name").is_in(REPORT_SPANS)
    complete = pl.col("seen") >= pl.col("expected")
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
            arrived=complete.filter("trusted").all(),
            agent_arrived=complete.filter(~pl.col("trusted")).all(),
        )
    )


def _call_counts(calls: pl.DataFrame) -> pl.DataFrame:
    kind = pl.col("kind")
    return calls.group_by("execution_id").agg(
        llm_calls=(kind == "llm").sum(), tool_calls=(kind == "tool").sum()
    )


def _critical_paths(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the longest chain of calls that follow each other; null where a clock ran backwards.

    Agents and nodes that enclose other calls are left out. A call inside another, such as a
    sub-agent's inside a tool, is never in one chain with it, so no time counts twice.
    """
    enclosing = calls.select(call_id="parent_id").drop_nulls().unique()
    leaves = calls.join(enclosing, "call_id", "anti")
    container = pl.col("kind").is_in(CONTAINERS)
    work = pl.concat(
        [calls.filter(~container).select(_TIMES), leaves.filter(container).select(_TIMES)]
    )
    grouped = work.sort("end").group_by("execution_id", maintain_order=True).agg("start", "end")
    times = zip(grouped["start"].to_list(), grouped["end"].to_list(), strict=True)
    paths = [longest_chain(starts, ends, SLACK) for starts, ends in times]
    seconds = [path / 1e9 if path is not None else None for path in paths]
    return grouped.select("execution_id", critical_path=pl.Series(seconds, dtype=pl.Float64))


_TIMES = ("execution_id", "start", "end")


def longest_chain(starts: list[int], ends: list[int], slack: int = 0) -> int | None:
    """Return the longest total length of intervals that follow each other; times in nanoseconds.

    The intervals are in order of their ends. The result is None where one ends before it starts.

    Args:
        slack: how long before its predecessor's end an interval may begin.
    """
    best = [0]
    for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if end < start:
            return None
        before = best[bisect_right(ends, start + slack, 0, index)]
        best.append(max(best[-1], before + end - start))
    return best[-1]


def longest_chain_members(starts: list[int], ends: list[int], slack: int = 0) -> list[int]:
    """Return the indices of the intervals of the longest chain, for the arguments of
    `longest_chain`; empty where that is None.
    """
    best, last = [0], list[int | None]()  # the last interval of the best chain of the first ones
    before = list[int]()
    for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if end < start:
            return []
        before.append(bisect_right(ends, start + slack, 0, index))
        length = best[before[-1]] + end - start
        last.append(index if length > best[-1] else last[-1] if last else None)
        best.append(max(best[-1], length))
    members, count = list[int](), len(last)
    while count and (member := last[count - 1]) is not None:
        members.append(member)
        count = before[member]
    return members[::-1]
