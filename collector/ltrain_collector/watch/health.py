"""`/health`: how a collector stands, in a few numbers, for probes and for `ltrain doctor`."""

from typing import Any

from ltrain_collector.watch.recent import Recent
from ltrain_collector.watch.state import Watched


class Health:
    """What is told to whoever asks."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self.recent = Recent(watched.intake.counters)

    def told(self) -> dict[str, Any]:
        """Give the counters since the start, those of the last minutes, disk and version."""
        intake = self.watched.intake
        tables = intake.counters.tables.values()
        signals = {
            name: {
                "requests": of.requests,
                "accepted": of.accepted,
                "rejected": of.rejected,
                "refused": dict(of.refused),
            }
            for name, of in intake.counters.signals.items()
        }
        size, free = self.watched.disk()
        return {
            "status": self.watched.fault() or "ok",
            "version": self.watched.program,
            "requests": sum(of.requests for of in intake.counters.signals.values()),
            **signals,
            "inserts": sum(of.inserts for of in tables),
            "failures": sum(of.failures for of in tables),
            "waiting_bytes": intake.budget.waiting,
            "recent": self.recent.told(),
            "disk": {"size": size, "free": free},
        }
