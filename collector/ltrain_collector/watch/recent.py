"""What went wrong in the last minutes: the counters now, less those of then."""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from ltrain_collector.ingest.counters import SECONDS, Counters

ROUNDS = 20
"""Notes that are kept: of five minutes."""

SHARE = 0.95
"""Of requests that were stored within what is told as the lag."""


@dataclass(frozen=True, slots=True)
class _Note:
    """Of all signals together."""

    requests: int = 0
    rejected: int = 0
    failures: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    lag: tuple[int, ...] = (0,) * (len(SECONDS) + 1)


class Recent:
    """Notes of a collector's counters, one a round."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._notes = deque([_Note()], maxlen=ROUNDS)

    def note(self) -> None:
        """Keep how the counters stand."""
        self._notes.append(self._now())

    def told(self) -> dict[str, Any]:
        """Give what was counted since the oldest note: five minutes ago, or the start.

        `lag` is the seconds, by the bounds of its histogram, in which 95 of 100 requests were
        stored; what took longer than the last bound is told as that.
        """
        now, then = self._now(), self._notes[0]
        lag = [after - before for after, before in zip(now.lag, then.lag, strict=True)]
        return {
            "requests": now.requests - then.requests,
            "rejected": now.rejected - then.rejected,
            "refused": dict(now.refused - then.refused),
            "failures": now.failures - then.failures,
            "lag": _bound(lag),
        }

    def _now(self) -> _Note:
        signals = self._counters.signals.values()
        refused = Counter[str]()
        for of in signals:
            refused.update(of.refused)
        return _Note(
            sum(of.requests for of in signals),
            sum(of.rejected for of in signals),
            sum(of.failures for of in self._counters.tables.values()),
            refused,
            tuple(map(sum, zip(*(of.lag.counts for of in signals), strict=True))),
        )


def _bound(counts: list[int]) -> float:
    """Give the bound below which the share of all is; 0 where there are none."""
    wanted, seen = SHARE * sum(counts), 0
    if not wanted:
        return 0.0
    for bound, count in zip(SECONDS, counts, strict=False):
        seen += count
        if seen >= wanted:
            return bound
    return SECONDS[-1]
