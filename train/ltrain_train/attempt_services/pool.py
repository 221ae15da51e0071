"""The services of a run, and the leases by which attempts use them.

An attempt gets one instance of every service, or waits for all of them before it begins.
"""

import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ltrain_instrument.settings import secret_variables
from ltrain_train.attempt_services.instance import Instance, ServiceFailed
from ltrain_train.processes import Children, free_port
from ltrain_train.workers import agent_environment

if TYPE_CHECKING:  # its import takes a second, which a runner without services saves
    from ltrain_transforms.recipe import Service

OTLP_HEADERS = [
    f"OTEL_EXPORTER_OTLP_{signal}HEADERS" for signal in ("", "TRACES_", "LOGS_", "METRICS_")
]
"""Variables that may hold a key of the store."""
RECENT_PORTS = 1000
"""Ports of the last starts, which the next ones do not get."""


@dataclass(frozen=True, slots=True)
class Use:
    """One instance, and the start of it that an attempt uses."""

    instance: Instance
    start: int


@dataclass(frozen=True, slots=True)
class Fault:
    """The end of an instance during an attempt."""

    reason: str
    shared: bool
    """Whether other attempts used it, too."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The instances that an attempt uses, one of each service."""

    uses: Sequence[Use]
    addresses: Mapping[str, str]
    """By the service's name."""

    def find_fault(self) -> Fault | None:
        """Return which instance ended during the attempt; None if all run."""
        for use in self.uses:
            if reason := use.instance.find_fault(use.start):
                return Fault(reason, shared=use.instance.service.per == "run")
        return None

    def release(self) -> None:
        """Return the instances to the pool; call it once."""
        for use in self.uses:
            use.instance.release(use.start)


NO_LEASE = Lease((), MappingProxyType({}))
"""The lease of an attempt without services."""


class ServicePool:
    """Owns the instances of the services; `close` ends them."""

    def __init__(
        self,
        services: Sequence["Service"],
        *,
        folder: Path,
        home: Path,
        secrets: Iterable[str] = (),
        keep_open: Sequence[int] = (),
    ) -> None:
        """Begin to start the instances, and return at once.

        Args:
            secrets: variables that services do not get, besides ltrain's own.
            keep_open: descriptors of the run's lock, open until the services have ended.
        """
        hidden = dict.fromkeys([*secret_variables(), *OTLP_HEADERS, *secrets, "LTRAIN_HOME"])
        self._children = Children(keep_open)
        self._lock = threading.Lock()
        self._failure: ServiceFailed | None = None
        self._ports: deque[int] = deque(maxlen=RECENT_PORTS)
        self._instances: dict[str, list[Instance]] = {}
        for service in services:
            self._instances[service.name] = [
                Instance(
                    service,
                    number + 1,
                    children=self._children,
                    environ=agent_environment(home, hidden),
                    folder=folder,
                    home=home,
                    pick_port=self._pick_port,
                    on_failure=self._fail,
                )
                for number in range(service.count)
            ]

    def acquire(self) -> Lease | None:
        """Return a lease of one instance of each service; None while one has none free.

        Raises:
            ServiceFailed: when an instance is not started again.
        """
        if self._failure is not None:
            raise self._failure
        free = [_find_free(instances) for instances in self._instances.values()]
        chosen = [instance for instance in free if instance is not None]
        if len(chosen) < len(free):
            return None
        uses = [Use(instance, instance.take()) for instance in chosen]
        return Lease(uses, {each.service.name: each.address for each in chosen})

    def close(self) -> None:
        """End every instance."""
        for instances in self._instances.values():
            for instance in instances:
                instance.stop()
        self._children.stop()

    def _pick_port(self) -> int:
        """Return a free port that no instance had recently: agents may still call an ended one."""
        with self._lock:
            port = free_port(self._ports)
            self._ports.append(port)
            return port

    def _fail(self, failure: ServiceFailed) -> None:
        self._failure = self._failure or failure


def _find_free(instances: Sequence[Instance]) -> Instance | None:
    """Return the ready instance with the fewest users; an exclusive one has none."""
    ready = [
        each for each in instances if each.ready and (each.service.per == "run" or not each.users)
    ]
    return min(ready, key=lambda each: each.users, default=None)
