"""The store and the gateway of a run: those that already answer are used, others are started.

Services are started on this machine only; a remote one that does not answer is an error. A started
service that dies is started again, as often as it dies: meanwhile spans wait on disk for the store,
and agents and the loop wait for the gateway, which serves the current version again. The limits of
these waits end a run whose service stays away.
"""

import logging
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from threading import Event, Thread
from typing import TypeVar
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

from ltrain_collector.dsn import Server, parse_dsn
from ltrain_instrument import settings
from ltrain_instrument.machine import LOOPBACK_NAMES
from ltrain_train.errors import NotReachable
from ltrain_train.processes import Child, ChildDied, Children, Command

R = TypeVar("R")

DEFAULT_STORE = "http://127.0.0.1:8123"
GATEWAY_START_TIMEOUT = 300.0
"""Maximum seconds of the gateway's start, while its policy server loads the model."""
START_POLL = 0.2
"""Seconds between two checks of the services that are starting."""
POLL = 0.5
"""Seconds between two checks of the started services."""
PAUSES = (0, 2, 6, 15, 30, 60)
"""Seconds before a service is started again: after its first death, its second, and so on."""
STEADY = 600.0
"""Seconds after which the death of a service counts as its first."""

_logger = logging.getLogger("ltrain.loop")


@dataclass(frozen=True, slots=True)
class RequiredService:
    """A service that the run needs, and how to start it."""

    name: str
    health: str
    """URL that answers 200 when the service is ready."""
    ready_text: bytes
    """Text in that response when the service is ready."""
    command: tuple[str, ...]
    """Arguments of `ltrain` that start the service."""
    timeout: float
    """Maximum seconds of its start."""
    answers: tuple[HTTPStatus, ...] = (HTTPStatus.OK,)
    """Statuses of `health` that a running service answers, ready or not."""

    def is_ready(self) -> bool:
        """Return whether the service answers that it is ready."""
        return responds(self.health, text=self.ready_text)


class Services(ExitStack):
    """Owns the services that it started; `keep_open` stays open until they have ended."""

    def __init__(
        self,
        home: Path,
        *,
        policies: Sequence[str],
        serve: Sequence[str] = (),
        gateway_url: str | None = None,
        keep_open: Sequence[int] = (),
    ) -> None:
        """Prepare the services of a run.

        Args:
            policies: the served policies, the default one first.
            serve: further arguments of `ltrain serve`.
            gateway_url: address of the gateway; default: LTRAIN_GATEWAY.
            keep_open: descriptors of the run's lock, open until the services have ended.
        """
        super().__init__()
        self.home, self.policies, self.serve = home, tuple(policies), tuple(serve)
        self.keep_open = tuple(keep_open)
        self.children = self.enter_context(Children(self.keep_open))
        self.store_url = settings.STORE.read() or DEFAULT_STORE
        self.gateway_url = gateway_url or settings.GATEWAY.read()
        self._began = 0.0
        self._required: list[RequiredService] = []
        self._started: dict[str, Child] = {}
        self._stopping = Event()
        self._watchers: list[Thread] = []
        self.callback(self._stop_watching)

    def start(self) -> None:
        """Start the services that do not run, and return at once; `ready` tells when they answer.

        Raises:
            NotReachable: when a remote service does not answer.
        """
        self._began = time.monotonic()
        self._required = self.required()
        for service in self._required:
            if is_starting(service.health):
                _logger.warning(
                    "ltrain: waiting for the %s: its port is open, but it does not answer yet",
                    service.name,
                )
            elif not responds(service.health, service.answers):
                self._start(service)

    def required(self) -> list[RequiredService]:
        """Return the store and the gateway.

        Raises:
            NotReachable: when the store is not a server.
        """
        return [self._store_service(), self._gateway_service()]

    def finds_gateway(self) -> bool:
        """Return whether a gateway runs already, which is then used."""
        gateway = self._gateway_service()
        return responds(gateway.health, gateway.answers) or is_starting(gateway.health)

    @property
    def starts_gateway(self) -> bool:
        """Whether these services started the gateway."""
        return "gateway" in self._started

    def stop_gateway(self) -> None:
        """Request the end of a started gateway, while the store still receives its last spans."""
        self._stop_watching()
        if self.starts_gateway:
            self._started["gateway"].request_stop()

    def ready(self) -> bool:
        """Return whether store and gateway are ready.

        Raises:
            ChildDied: when a started service has ended.
            NotReachable: when a service is not ready in time.
        """
        for service in self._required:
            if not service.is_ready():
                self._check_start(service)
                return False
        if not self._watchers:
            self._watch()
        return True

    def open_runner(self, open_it: Callable[[], R], may_open: Callable[[], bool]) -> R:
        """Return the runner that `open_it` opens, when store and gateway are ready.

        It opens as soon as the store is ready, so that the agent's processes start while vLLM loads
        its model.

        Args:
            open_it: opens the runner.
            may_open: called again and again while the services start; until it returns True, the
                runner is not opened before they are ready.

        Raises:
            ChildDied: when a started service has ended.
            NotReachable: when a service is not ready in time.
        """
        store, runner = self._required[0], None
        while not self.ready():
            if may_open() and runner is None and store.is_ready():
                runner = open_it()
            time.sleep(START_POLL)
        return open_it() if runner is None else runner

    def _check_start(self, service: RequiredService) -> None:
        self.children.check()
        if time.monotonic() - self._began > service.timeout:
            log = f"Its log is {self.home / 'logs' / service.name}.log."
            where = f"It was started by another command; {service.health} tells its state."
            raise NotReachable(
                f"The {service.name} is not ready after {service.timeout:.0f} s. "
                + (log if service.name in self._started else where)
            )

    def _store_service(self) -> RequiredService:
        address = parse_dsn(self.store_url)
        if not isinstance(address, Server) or not self.store_url.startswith("http"):
            raise NotReachable(
                f"LTRAIN_STORE={self.store_url} is not a server, and agents can send spans to a "
                f"server only. Run `ltrain up --dir {self.store_url.removeprefix('chdb://')}` "
                f"and set LTRAIN_STORE={DEFAULT_STORE}."
            )
        otlp = _port_of(settings.OTLP_ENDPOINT.read())
        command = ("up", "--dir", str(self.home / "store"), "--otlp-port", otlp)
        ports = ("--grpc-port", "0", "--http-port", str(address.port))
        # unlike `store_url`, `address` shows no key
        return RequiredService("store", f"{address}/ping", b"Ok", command + ports, 60)

    def _gateway_service(self) -> RequiredService:
        names = (part for name in self.policies for part in ("--policy", name))
        command = ("serve", *names, "--port", _port_of(self.gateway_url))
        return RequiredService(
            "gateway",
            f"{self.gateway_url}/health",
            b'"ready"',
            command + self.serve,
            GATEWAY_START_TIMEOUT,
            (HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE),  # 503: its policy server is away
        )

    def _start(self, service: RequiredService) -> None:
        if urlsplit(service.health).hostname not in LOOPBACK_NAMES:
            raise NotReachable(
                f"No {service.name} answers at {service.health}. Start it there: this command "
                "starts services on this machine only."
            )
        argv = [sys.executable, "-m", "ltrain", *service.command]
        log = self.home / "logs" / f"{service.name}.log"
        self._started[service.name] = self.children.start(service.name, Command(argv=argv, log=log))

    def _watch(self) -> None:
        """Start the services again that die, until the run stops."""
        for service in self._required:
            if service.name in self._started:
                watcher = Thread(target=self._keep_running, args=(service,), daemon=True)
                watcher.start()
                self._watchers.append(watcher)

    def _keep_running(self, service: RequiredService) -> None:
        deaths = 0
        while True:
            child, since = self._started[service.name], time.monotonic()
            while child.alive:
                if self._stopping.wait(POLL):
                    return
            deaths = 1 if time.monotonic() > since + STEADY else deaths + 1
            pause = PAUSES[min(deaths, len(PAUSES)) - 1]
            _logger.warning(
                "ltrain: the %s ended %s; it is started again %s. Its log is %s",
                *(service.name, child.describe_exit()),
                *(f"in {pause} s" if pause else "now", child.log),
            )
            child.request_stop()  # marks its end as handled
            if self._stopping.wait(pause):
                return
            try:
                self._start(service)
            except (ChildDied, OSError) as error:  # the system lacks files, processes or memory
                _logger.warning("ltrain: the %s cannot be started: %s", service.name, error)

    def _stop_watching(self) -> None:
        self._stopping.set()
        for watcher in self._watchers:
            watcher.join()


def _port_of(url: str) -> str:
    parts = urlsplit(url)
    return str(parts.port or (443 if parts.scheme == "https" else 80))


def responds(url: str, statuses: Collection[int] = (HTTPStatus.OK,), *, text: bytes = b"") -> bool:
    """Return whether a GET is answered in two seconds: one of `statuses`, `text` in the body."""
    try:
        with urlopen(url, timeout=2) as response:
            return response.status in statuses and text in response.read(1 << 16)
    except HTTPError as error:
        with error:
            return error.status in statuses and text in error.read(1 << 16)
    except (OSError, HTTPException):
        return False


def is_starting(url: str) -> bool:
    """Return whether a server accepts a request and does not answer it in two seconds.

    `ltrain serve` binds its port before it loads the model.
    """
    try:
        urlopen(url, timeout=2).close()
    except TimeoutError:
        return True
    except (OSError, HTTPException):
        pass
    return False
