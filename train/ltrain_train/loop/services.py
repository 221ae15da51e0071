"""The store and the gateway a run needs: what answers is used, what doesn't is started here.

Only addresses on this machine are started; one elsewhere that does not answer is an error. A store
that was started here and dies is started again: spans wait on disk until it is back.
"""

import logging
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Self
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from ltrain_collector.dsn import Server, parse
from ltrain_instrument import loopback, settings
from ltrain_train.errors import NotReachable
from ltrain_train.policy.precision import VLLM_NAMES
from ltrain_train.process import Child, Children

DEFAULT_STORE = "http://127.0.0.1:8123"
WATCH = 1.0
"""Seconds between two looks at the store that was started here."""

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
    """Owns what it started, and nothing else."""

    def __init__(self, home: Path, *, policy: str, dtype: str) -> None:
        self.home, self.policy, self.dtype = home, policy, dtype
        self.children = Children()
        self.store_url = settings.STORE.read() or DEFAULT_STORE
        self.gateway_url = settings.GATEWAY.read()
        self._began = time.monotonic()
        self._wanted: list[Service] = []
        self._owned: dict[str, Child] = {}
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
        if "gateway" in self._owned:
            self._owned["gateway"].ask()

    def ready(self) -> bool:
        """Tell whether store and gateway answer.

        Raises:
            ChildDied: when one that was started here has ended.
            NotReachable: when one takes longer than it may.
        """
        for service in self._wanted:
            if not answers(service.health, service.says):
                self._wait_for(service)
                return False
        if self._watch is None and "store" in self._owned:
            self._watch = Thread(target=self._keep, args=(self._wanted[0],), daemon=True)
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
        address = parse(self.store_url)
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

    def _keep(self, service: Service) -> None:
        while not self._leaving.wait(WATCH):
            child = self._owned[service.name]
            if not child.alive:
                _logger.warning("ltrain: the %s ended; starting it again", service.name)
                child.ask()  # its end is known
                self._owned[service.name] = self._start(service)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leaving.set()
        if self._watch is not None:
            self._watch.join()
        self.children.stop()


def answers(url: str, says: bytes = b"") -> bool:
    """Tell whether a server answers a GET within two seconds with 200 and `says` in its body."""
    try:
        with urlopen(url, timeout=2) as answer:
            return answer.status == 200 and says in answer.read(1 << 16)
    except (URLError, OSError):
        return False


def _port(url: str) -> str:
    parts = urlsplit(url)
    return str(parts.port or (443 if parts.scheme == "https" else 80))
