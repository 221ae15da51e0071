"""The barrier before a wave is built: all spans that the wave's processes ended have arrived.

Each process reports how many spans it ended for an attempt, the runner when it closes it; the
reports themselves are not counted. No other sender's spans stand in for a trusted process's.
"""

import time
from collections.abc import Collection, Sequence

import polars as pl

from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_transforms import roles
from ltrain_transforms.roles import Role

POLL = 0.1
"""Seconds between two looks at the store."""

AT_ONCE = 200
"""Rollouts asked for in one query: their ids travel in a URL, whose length servers bound."""

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
    store: Store, rollouts: Collection[str], timeout: float, trust: Sequence[str] = roles.TRUSTED
) -> set[str]:
    """Wait until all spans of `rollouts` are in `store`, at most `timeout` seconds.

    Args:
        trust: the senders whose spans may be a runner's.

    Returns:
        The rollouts that are still incomplete: not closed, or with spans missing.
    """
    until = time.monotonic() + timeout
    missing = incomplete(store, set(rollouts), trust)
    while missing and time.monotonic() < until:
        time.sleep(POLL)
        missing = incomplete(store, missing, trust)
    return missing


def incomplete(
    store: Store, rollouts: Collection[str], trust: Sequence[str] = roles.TRUSTED
) -> set[str]:
    """Return those of `rollouts` whose latest attempt is not closed or lacks spans."""
    ids = sorted(rollouts)
    batches = (ids[begin : begin + AT_ONCE] for begin in range(0, len(ids), AT_ONCE))
    return {missing for batch in batches for missing in _incomplete(store, batch, trust)}


def _incomplete(store: Store, rollouts: list[str], trust: Sequence[str]) -> set[str]:
    sql = _ARRIVED.format(runner=roles.of(Role.RUNNER, trust), trusted=roles.sent_by(trust))
    found = store.query(sql, {"rollouts": rollouts})
    attempts = found.group_by("rollout_id", "attempt").agg(
        whole=(pl.col("seen") >= pl.col("expected")).all() & pl.col("closed").cast(bool).any(),
        start=pl.col("start").min(),
        dispatched=pl.col("dispatched").cast(bool).any(),
    )
    # what no runner dispatched takes the place of no attempt
    latest = attempts.filter("dispatched").sort("start").group_by("rollout_id").last()
    return set(rollouts) - set(latest.filter("whole")["rollout_id"])
