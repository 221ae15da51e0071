"""The barrier before a wave is built: all spans that the wave's processes ended have arrived.

Each process reports how many spans it ended for an attempt, the runner when it closes it; the
reports themselves are not counted.
"""

import time
from collections.abc import Collection

import polars as pl

from ltrain_collector.store import Store
from ltrain_instrument import attributes

POLL = 0.1
"""Seconds between two looks at the store."""

AT_ONCE = 200
"""Rollouts asked for in one query: their ids travel in a URL, whose length servers bound."""

_ARRIVED = f"""
WITH SpanName IN ('{attributes.SPAN_PROCESS}', '{attributes.SPAN_ROLLOUT}') AS report
SELECT
    RolloutId AS rollout_id, toString(Attempt) AS attempt,
    ResourceAttributes['service.instance.id'] AS process,
    toInt64(countIf(NOT report)) AS seen,
    toInt64(maxIf(toUInt32OrZero(SpanAttributes['{attributes.SPANS}']), report)) AS expected,
    countIf(SpanName = '{attributes.SPAN_ROLLOUT}') > 0 AS closed,
    toUnixTimestamp64Nano(min(Timestamp)) AS start
FROM otel.spans
WHERE RolloutId IN {{rollouts:Array(String)}}
GROUP BY rollout_id, attempt, process
"""


def wait_complete(store: Store, rollouts: Collection[str], settle: float) -> set[str]:
    """Wait until all spans of `rollouts` are in `store`, at most `settle` seconds.

    Returns:
        The rollouts that are still incomplete: not closed, or with spans missing.
    """
    until = time.monotonic() + settle
    missing = incomplete(store, set(rollouts))
    while missing and time.monotonic() < until:
        time.sleep(POLL)
        missing = incomplete(store, missing)
    return missing


def incomplete(store: Store, rollouts: Collection[str]) -> set[str]:
    """Give those of `rollouts` whose latest attempt is not closed or lacks spans."""
    ids = sorted(rollouts)
    batches = (ids[begin : begin + AT_ONCE] for begin in range(0, len(ids), AT_ONCE))
    return {missing for batch in batches for missing in _incomplete(store, batch)}


def _incomplete(store: Store, rollouts: list[str]) -> set[str]:
    found = store.query(_ARRIVED, {"rollouts": rollouts})
    attempts = found.group_by("rollout_id", "attempt").agg(
        whole=(pl.col("seen") >= pl.col("expected")).all() & pl.col("closed").cast(bool).any(),
        start=pl.col("start").min(),
    )
    latest = attempts.sort("start").group_by("rollout_id").last()
    return set(rollouts) - set(latest.filter("whole")["rollout_id"])
