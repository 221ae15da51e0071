"""`/health`: the state of a collector in a few numbers, for probes and `ltrain doctor`."""

from typing import Any

from ltrain_collector.metrics.recent import Recent
from ltrain_collector.metrics.state import Monitor


class Health:
    """The report of `/health`."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self.recent = Recent(monitor.intake.counters)

    def report(self) -> dict[str, Any]:
        """Return counters since the start and of the last minutes, disk space and version."""
        intake = self.monitor.intake
        tables = intake.counters.tables.values()
        signals = {
            name: {
                "requests": counters.requests,
                "accepted": counters.accepted,
                "rejected": counters.rejected,
                "refused": dict(counters.refused),
            }
            for name, counters in intake.counters.signals.items()
        }
        size, free = self.monitor.disk()
        return {
            "status": self.monitor.failure() or "ok",
            "version": self.monitor.program,
            "requests": sum(counters.requests for counters in intake.counters.signals.values()),
            **signals,
            "inserts": sum(counters.inserts for counters in tables),
            "failures": sum(counters.failures for counters in tables),
            "waiting_bytes": intake.budget.in_use,
            "recent": self.recent.summary(),
            "disk": {"size": size, "free": free},
        }
