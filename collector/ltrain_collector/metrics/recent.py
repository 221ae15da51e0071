"""Counts of the last five minutes: current counters less those of an earlier snapshot."""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from ltrain_collector.ingest import SECONDS_BOUNDS, Counters

MAX_SNAPSHOTS = 20
"""Number of snapshots: one every 15 seconds for five minutes."""

LAG_QUANTILE = 0.95
"""Share of requests that were stored within the reported lag."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Counters of all signals together."""

    requests: int = 0
    rejected: int = 0
    failures: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    lag: tuple[int, ...] = (0,) * (len(SECONDS_BOUNDS) + 1)


class Recent:
    """Snapshots of a collector's counters."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._snapshots = deque([_Snapshot()], maxlen=MAX_SNAPSHOTS)

    def take_snapshot(self) -> None:
        """Store the current counters."""
        self._snapshots.append(self._snapshot())

    def summary(self) -> dict[str, Any]:
        """Return the counts since the oldest snapshot: five minutes ago, or the start.

        `lag` is the bound of the histogram, in seconds, within which 95 % of the requests were
        stored; the last bound also stands for all longer times.
        """
        now, then = self._snapshot(), self._snapshots[0]
        lag = [after - before for after, before in zip(now.lag, then.lag, strict=True)]
        return {
            "requests": now.requests - then.requests,
            "rejected": now.rejected - then.rejected,
            "refused": dict(now.refused - then.refused),
            "failures": now.failures - then.failures,
            "lag": _lag_bound(lag),
        }

    def _snapshot(self) -> _Snapshot:
        signals = self._counters.signals.values()
        refused = Counter[str]()
        for of in signals:
            refused.update(of.refused)
        return _Snapshot(
            sum(of.requests for of in signals),
            sum(of.rejected for of in signals),
            sum(of.failures for of in self._counters.tables.values()),
            refused,
            tuple(map(sum, zip(*(of.lag.counts for of in signals), strict=True))),
        )


def _lag_bound(counts: list[int]) -> float:
    """Return the bound within which `LAG_QUANTILE` of all counts are; 0 without counts."""
    target, cumulative = LAG_QUANTILE * sum(counts), 0
    if not target:
        return 0.0
    for bound, count in zip(SECONDS_BOUNDS, counts, strict=False):
        cumulative += count
        if cumulative >= target:
            return bound
    return SECONDS_BOUNDS[-1]
