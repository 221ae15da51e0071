"""`/health`: the state of a collector in a few numbers, for probes and `ltrain doctor`."""

from collections import Counter, deque
from typing import Any

from prometheus_client.samples import Sample

from ltrain_collector.forward import Tee
from ltrain_collector.ingest import SECONDS_BOUNDS
from ltrain_collector.metrics.monitor import Monitor
from ltrain_collector.signals import SIGNALS
from ltrain_collector.store import program_version

MAX_SNAPSHOTS = 20
"""Number of snapshots: one every 15 seconds for five minutes."""

LAG_QUANTILE = 0.95
"""Share of requests that were stored within the reported lag."""

RECENT = {
    "requests": ("requests_total", "signal"),
    "rejected": ("rejected_total", "signal"),
    "refused": ("refused_total", "reason"),
    "failures": ("insert_failures_total", "table"),
    "lag": ("lag_seconds_bucket", "le"),
}
"""Metrics of the last minutes, and the label by which each is added up."""


class Health:
    """The report of `/health`."""

    def __init__(self, monitor: Monitor, tee: Tee | None = None) -> None:
        self.monitor = monitor
        self._tee = tee
        self._snapshots = deque([{name: Counter[str]() for name in RECENT}], maxlen=MAX_SNAPSHOTS)

    def take_snapshot(self) -> None:
        """Store the current counters, for the report of the last minutes."""
        self._snapshots.append(_snapshot(self.monitor.metrics.samples()))

    def report(self) -> dict[str, Any]:
        """Return counters since the start and of the last minutes, disk, targets and version."""
        samples = self.monitor.metrics.samples()
        requests = _sum_by("signal", samples, "requests_total")
        accepted = _sum_by("signal", samples, "accepted_total")
        rejected = _sum_by("signal", samples, "rejected_total")
        signals = {
            name: {
                "requests": requests[name],
                "accepted": accepted[name],
                "rejected": rejected[name],
                "refused": dict(_sum_by("reason", samples, "refused_total", signal=name)),
            }
            for name in (signal.name for signal in SIGNALS)
        }
        disk = self.monitor.disk()
        return {
            "status": self.monitor.failure() or "ok",
            "version": program_version(),
            "requests": requests.total(),
            **signals,
            "inserts": _sum_by("table", samples, "inserts_total").total(),
            "failures": _sum_by("table", samples, "insert_failures_total").total(),
            "waiting_bytes": _sum_by("", samples, "waiting_bytes").total(),
            "recent": self._recent(samples),
            "disk": {"size": disk.size, "free": disk.free, "reserve": disk.reserve},
            "forward": self._tee.report() if self._tee is not None else {},
            "returned": self._tee.returned if self._tee is not None else 0,
        }

    def _recent(self, samples: list[Sample]) -> dict[str, Any]:
        """Return the counts since the oldest snapshot: five minutes ago, or the start.

        `lag` is the bound of the histogram, in seconds, within which 95 % of the requests were
        stored; the last bound also stands for all longer times.
        """
        now, then = _snapshot(samples), self._snapshots[0]
        recent = {name: now[name] - then[name] for name in RECENT}
        return {
            "requests": recent["requests"].total(),
            "rejected": recent["rejected"].total(),
            "refused": dict(recent["refused"]),
            "failures": recent["failures"].total(),
            "lag": _lag_bound(recent["lag"]),
        }


def _snapshot(samples: list[Sample]) -> dict[str, Counter[str]]:
    return {name: _sum_by(label, samples, metric) for name, (metric, label) in RECENT.items()}


def _sum_by(label: str, samples: list[Sample], name: str, **only: str) -> Counter[str]:
    """Return the sums of a metric by the values of a label, of samples with the labels `only`."""
    sums = Counter[str]()
    for sample in samples:
        if sample.name == f"ltrain_collector_{name}" and only.items() <= sample.labels.items():
            sums[sample.labels.get(label, "")] += int(sample.value)
    return sums


def _lag_bound(counts: Counter[str]) -> float:
    """Return the bound within which `LAG_QUANTILE` of all counts are; 0 without counts.

    Args:
        counts: requests up to each bound.
    """
    target = LAG_QUANTILE * counts["+Inf"]
    bounds = [float(bound) for bound, count in counts.items() if count >= target]
    return min(*bounds, SECONDS_BOUNDS[-1]) if bounds else 0.0
