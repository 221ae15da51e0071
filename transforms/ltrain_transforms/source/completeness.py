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
    return _wait_until(incomplete_rollouts, store, rollouts, timeout, trust)


def wait_closed(
    store: Store,
    rollouts: Collection[str],
    timeout: float,
    trust: Sequence[str] = sender_roles.TRUSTED,
) -> set[str]:
    """Wait at most `timeout` seconds until the spans that close `rollouts` are in `store`.

    Returns:
        The ids of rollouts whose latest attempt is not closed.
    """
    return _wait_until(open_rollouts, store, rollouts, timeout, trust)


def incomplete_rollouts(
    store: Store, rollouts: Collection[str], trust: Sequence[str] = sender_roles.TRUSTED
) -> set[str]:
    """Return the rollouts whose latest attempt is not closed or lacks spans."""
    return _missing(store, rollouts, trust, pl.col("closed") & pl.col("all_seen"))


def open_rollouts(
    store: Store, rollouts: Collection[str], trust: Sequence[str] = sender_roles.TRUSTED
) -> set[str]:
    """Return the rollouts whose latest attempt is not closed."""
    return _missing(store, rollouts, trust, pl.col("closed"))


def _wait_until(
    find_missing: Callable[[Store, set[str], Sequence[str]], set[str]],
    store: Store,
    rollouts: Collection[str],
    timeout: float,
    trust: Sequence[str],
) -> set[str]:
    deadline = time.monotonic() + timeout
    missing = find_missing(store, set(rollouts), trust)
    while missing and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        missing = find_missing(store, missing, trust)
    return missing


def _missing(
    store: Store, rollouts: Collection[str], trust: Sequence[str], has_arrived: pl.Expr
) -> set[str]:
    """Return the rollouts whose latest attempt has not arrived."""
    ids = sorted(rollouts)
    batches = (
        ids[begin : begin + ROLLOUTS_PER_QUERY] for begin in range(0, len(ids), ROLLOUTS_PER_QUERY)
    )
    arrived = [_latest_attempts(store, batch, trust).filter(has_arrived) for batch in batches]
    return set(ids).difference(*(frame["rollout_id"] for frame in arrived))


def _latest_attempts(store: Store, rollouts: list[str], trust: Sequence[str]) -> pl.DataFrame:
    """Return for the latest attempt at each rollout whether it is closed and has all spans."""
    sql = _ARRIVED.format(
        runner=sender_roles.role_condition(Role.RUNNER, trust),
        trusted=sender_roles.sender_condition(trust),
    )
    reports = store.query(sql, {"rollouts": rollouts})
    attempts = reports.group_by("rollout_id", "attempt").agg(
        all_seen=(pl.col("seen") >= pl.col("expected")).all(),
        closed=pl.col("closed").cast(bool).any(),
        start=pl.col("start").min(),
        dispatched=pl.col("dispatched").cast(bool).any(),
    )
    # an attempt that no runner dispatched supersedes no other
    return attempts.filter("dispatched").sort("start").group_by("rollout_id").last()
