"""The store and the gateway a run needs: what answers is used, what doesn't is started here.

Only addresses on this machine are started; one elsewhere that does not answer is an error. What was
started here and dies is started again: spans wait on disk until the store is back, agents and the
loop wait for the gateway, which serves the version that was current.
"""

import logging
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Self
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from ltrain_collector.dsn import Server, parse_dsn
from ltrain_instrument import loopback, settings
from ltrain_train.deaths import DEATHS, DEATHS_WITHIN, Deaths
from ltrain_train.errors import NotReachable
from ltrain_train.policy.precision import VLLM_NAMES
from ltrain_train.process import Child, Children

DEFAULT_STORE = "http://127.0.0.1:8123"
WATCH = 0.5
"""Seconds between two looks at what was started here."""

_logger = logging.getLogger("ltrain.loop")


@dataclass(frozen=True, slots=True)
class Service:
    name: str
    health: str
    """Answers 200 when it is up."""
    says: bytes
    """Is in that answer when it is ready."""
    command: tuple[str, ...]
    """Arguments of `ltrain`."""
    timeout: float
    """Seconds its start may take."""


class Services:
    """Owns what it started, and nothing else; `held` stays open until all of that has ended."""

    def __init__(self, home: Path, *, policy: str, dtype: str, held: Sequence[int] = ()) -> None:
        self.home, self.policy, self.dtype = home, policy, dtype
        self.children = Children(held)
        self.store_url = settings.STORE.read() or DEFAULT_STORE
        self.gateway_url = settings.GATEWAY.read()
        self._began = time.monotonic()
        self._wanted: list[Service] = []
        self._owned: dict[str, Child] = {}
        self._deaths: defaultdict[str, Deaths] = defaultdict(Deaths)
        self._leaving = Event()
        self._watch: Thread | None = None

    def start(self) -> None:
        """Start what does not answer, and return: `ready` tells when it does.

        Raises:
            NotReachable: when one lies elsewhere and does not answer.
        """
        self._wanted = [self._store(), self._gateway()]
        for service in self._wanted:
            if not answers(service.health):
                self._owned[service.name] = self._start(service)

    def release_gateway(self) -> None:
        """Ask the gateway that was started here for its end; the store hears its last spans."""
        self._leave()
        if "gateway" in self._owned:
            self._owned["gateway"].ask()

    def ready(self) -> bool:
        """Return whether store and gateway answer.

        Raises:
            ChildDied: when one that was started here has ended.
            NotReachable: when one takes longer than it may.
        """
        for service in self._wanted:
            if not answers(service.health, service.says):
                self._wait_for(service)
                return False
        if self._watch is None and self._owned:
            self._watch = Thread(target=self._keep, daemon=True)
            self._watch.start()
        return True

    def _wait_for(self, service: Service) -> None:
        self.children.check()
        if time.monotonic() - self._began > service.timeout:
            raise NotReachable(
                f"The {service.name} is not ready after {service.timeout:.0f} s. "
                f"Its log is {self.home / 'logs' / service.name}.log."
            )

    def _store(self) -> Service:
        address = parse_dsn(self.store_url)
        if not isinstance(address, Server) or not self.store_url.startswith("http"):
            raise NotReachable(
                f"LTRAIN_STORE={self.store_url}: agents can only send spans to a store that "
                f"listens. Start it with `ltrain up --dir {self.store_url.removeprefix('chdb://')}`"
                f" and set LTRAIN_STORE={DEFAULT_STORE}."
            )
        otlp = _port(settings.OTLP_ENDPOINT.read())
        command = ("up", "--dir", str(self.home / "store"), "--otlp-port", otlp)
        ports = ("--grpc-port", "0", "--http-port", str(address.port))
        # `address` without the key that may stand in it
        return Service("store", f"{address}/ping", b"Ok", command + ports, 60)

    def _gateway(self) -> Service:
        command = ("serve", "--policy", self.policy, "--dtype", VLLM_NAMES[self.dtype])
        port = ("--port", _port(self.gateway_url))
        return Service("gateway", f"{self.gateway_url}/health", b'"ready"', command + port, 300)

    def _start(self, service: Service) -> Child:
        if urlsplit(service.health).hostname not in loopback.NAMES:
            raise NotReachable(
                f"No {service.name} answers at {service.health}, and only those on this machine "
                "are started here."
            )
        return self.children.start(
            service.name,
            [sys.executable, "-m", "ltrain", *service.command],
            log=self.home / "logs" / f"{service.name}.log",
        )

    def _keep(self) -> None:
        """Start again what was started here and died, until it is left or dies again and again."""
        kept = [service for service in self._wanted if service.name in self._owned]
        while kept and not self._leaving.wait(WATCH):
            kept = [
                service
                for service in kept
                if self._owned[service.name].alive or self._restarted(service)
            ]

    def _restarted(self, service: Service) -> bool:
        child = self._owned[service.name]
        child.ask()  # its end is known
        if self._deaths[service.name].too_many():
            _logger.error(
                "ltrain: the %s ended %s, %d times within %.0f s; it is not started again. "
                "Its log is %s.",
                *(service.name, child.ending(), DEATHS, DEATHS_WITHIN, child.log),
            )
            return False
        _logger.warning("ltrain: the %s ended %s; starting it again", service.name, child.ending())
        self._owned[service.name] = self._start(service)
        return True

    def _leave(self) -> None:
        self._leaving.set()
        if self._watch is not None:
            self._watch.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()
        self.children.stop()


def answers(url: str, says: bytes = b"") -> bool:
    """Return whether a server answers a GET within two seconds with 200 and `says` in its body."""
    try:
        with urlopen(url, timeout=2) as answer:
            return answer.status == 200 and says in answer.read(1 << 16)
    except (URLError, OSError):
        return False


def _port(url: str) -> str:
    parts = urlsplit(url)
    return str(parts.port or (443 if parts.scheme == "https" else 80))
