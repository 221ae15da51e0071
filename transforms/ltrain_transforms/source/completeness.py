"""Wait until all spans of a wave have arrived in the store.

Each process reports how many spans it ended for an attempt; the runner reports when it closes the
attempt. The reports themselves are not counted. Spans of another sender do not count for a trusted
process.
"""

import time
from collections.abc import Callable, Collection, Sequence

import polars as pl

from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_transforms.ended_rollout import EndedRollout
from ltrain_transforms.traces import Role, sender_roles

POLL_SECONDS = 0.1
"""Seconds between two queries of the store."""

ROLLOUTS_PER_QUERY = 200
"""Ids in one query: they are sent in a URL, and servers limit its length."""

_ARRIVED = f"""
WITH SpanName IN ('{attributes.SPAN_PROCESS}', '{attributes.SPAN_ROLLOUT}') AS report
SELECT
    RolloutId AS rollout_id, toString(Attempt) AS attempt,
    ResourceAttributes['service.instance.id'] AS process, {{trusted}} AS trusted,
    toInt64(countIf(NOT report)) AS seen,
    toInt64(maxIf(toUInt32OrZero(SpanAttributes['{attributes.SPANS}']), report)) AS expected,
    countIf(SpanName = '{attributes.SPAN_ROLLOUT}' AND {{runner}}) > 0 AS closed,
    countIf(SpanName IN ('{attributes.SPAN_DISPATCH}', '{attributes.SPAN_ROLLOUT}') AND {{runner}})
        > 0 AS dispatched,
    toUnixTimestamp64Nano(min(Timestamp)) AS start
FROM otel.spans
WHERE RolloutId IN {{{{rollouts:Array(String)}}}}
GROUP BY rollout_id, attempt, process, trusted
"""


def wait_complete(
    store: Store,
    rollouts: Collection[str],
    timeout: float,
    trust: Sequence[str] = sender_roles.TRUSTED,
) -> set[str]:
    """Wait at most `timeout` seconds until all spans of `rollouts` are in `store`.

    Args:
        trust: the senders whose spans may be a runner's.

    Returns:
        The ids of rollouts that are still incomplete: not closed, or with missing spans.
    """
    return _wait_until(lambda batch: _incomplete(store, batch, trust), rollouts, timeout)


def wait_ended(
    store: Store,
    rollouts: Collection[EndedRollout],
    timeout: float,
    trust: Sequence[str] = sender_roles.TRUSTED,
    *,
    whole: bool = True,
) -> set[str]:
    """Wait at most `timeout` seconds until the spans of `rollouts` are in `store`.

    Args:
        whole: wait for all spans that a process reported to have ended, and not only for those
            that the runner has counted.

    Returns:
        The ids of rollouts whose last attempt is not closed in `store`, has fewer spans of trusted
        senders than its runner and its gateway ended for it, or lacks reported spans.
    """
    known = pl.DataFrame(
        [(each.rollout, str(each.attempt), each.spans) for each in rollouts],
        {"rollout_id": pl.String, "attempt": pl.String, "spans": pl.Int64},
        orient="row",
    )

    def find_missing(batch: list[str]) -> set[str]:
        attempts = _attempts(store, batch, trust).join(known, ("rollout_id", "attempt"))
        arrived = attempts.filter(
            "closed", pl.col("own_seen") >= pl.col("spans"), pl.col("all_seen") | (not whole)
        )
        return set(batch).difference(arrived["rollout_id"])

    return _wait_until(find_missing, known["rollout_id"].to_list(), timeout)


def _wait_until(
    find_missing: Callable[[list[str]], set[str]], rollouts: Collection[str], timeout: float
) -> set[str]:
    deadline = time.monotonic() + timeout
    missing = set(rollouts)
    while True:
        ids = sorted(missing)
        batches = range(0, len(ids), ROLLOUTS_PER_QUERY)
        found = (find_missing(ids[begin : begin + ROLLOUTS_PER_QUERY]) for begin in batches)
        missing = set[str]().union(*found)
        if not missing or time.monotonic() >= deadline:
            return missing
        time.sleep(POLL_SECONDS)


def _incomplete(store: Store, rollouts: list[str], trust: Sequence[str]) -> set[str]:
    """Return the rollouts whose latest attempt is not closed or lacks spans."""
    # an attempt that no runner dispatched supersedes no other
    number = pl.col("attempt").cast(pl.Int64, strict=False).fill_null(0)
    dispatched = _attempts(store, rollouts, trust).filter("dispatched").sort(number, "start")
    whole = dispatched.group_by("rollout_id").last().filter("closed", "all_seen")
    return set(rollouts).difference(whole["rollout_id"])


def _attempts(store: Store, rollouts: list[str], trust: Sequence[str]) -> pl.DataFrame:
    """Return for each attempt at the rollouts whether it is closed and has all spans."""
    sql = _ARRIVED.format(
        runner=sender_roles.role_condition(Role.RUNNER, trust),
        trusted=sender_roles.sender_condition(trust),
    )
    reports = store.query(sql, {"rollouts": rollouts})
    own = pl.col("trusted").cast(bool)
    return reports.group_by("rollout_id", "attempt").agg(
        all_seen=(pl.col("seen") >= pl.col("expected")).all(),
        own_seen=pl.col("seen").filter(own).sum(),
        closed=pl.col("closed").cast(bool).any(),
        start=pl.col("start").min(),
        dispatched=pl.col("dispatched").cast(bool).any(),
    )
