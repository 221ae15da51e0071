"""One instance of a service: started on a free port, and started again when it ends.

* An instance is ready when its health check passes. It gets a port and an empty private folder at
  each start, and none of ltrain's secrets.
* It is started again after its death, after an attempt if the service is `fresh`, and if its health
  check fails at the end of an attempt.
* An instance whose first start does not become healthy in time has failed, and so has one that
  dies `MAX_DEATHS` times within `DEATH_WINDOW` without serving an attempt. A failure ends the run.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from ltrain_instrument.errors import LtrainError
from ltrain_train.processes import (
    MAX_DEATHS,
    Child,
    ChildDied,
    ChildNotReady,
    Children,
    Command,
    RestartLimit,
    is_port_open,
    scratch_path,
)

if TYPE_CHECKING:  # its import takes a second, which a runner without services saves
    from ltrain_transforms.recipe import Service

KILL_GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""
DEATH_GRACE = 5.0
"""Seconds after an attempt in which an instance that does not answer may turn out to be dead."""
POLL = 0.05
"""Seconds between two health checks after an attempt."""
RESTART_PAUSE = 0.2
"""Seconds between the death of an instance and its next start."""
MAX_SOCKET_NAME = 40
"""Bytes of the longest path of a socket in the folder of an instance."""

TCP = "tcp"
"""The health check that the port is open."""
CHECK_TIMEOUT = 5.0
"""Seconds of one health check."""
CHECK_GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL of a check's command."""

_logger = logging.getLogger("ltrain.services")


class ServiceFailed(LtrainError, RuntimeError):
    """A service cannot be started, never becomes healthy, or dies again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    """A check of one instance, as a recipe's `health` names it."""

    health: str
    port: int
    children: Children
    """The owner of the processes of a command."""
    environ: Mapping[str, str | None] = field(repr=False)
    """Environment variables of a command."""
    folder: Path
    log: Path

    def passes(self) -> bool:
        """Return whether the instance is healthy."""
        if self.health == TCP:
            return is_port_open(self.port)
        return self._answers() if self.health.startswith("/") else self._command_succeeds()

    def _answers(self) -> bool:
        url = f"http://127.0.0.1:{self.port}{self.health}"
        try:
            client = httpx.Client(trust_env=False, timeout=CHECK_TIMEOUT)
            with client, client.stream("GET", url) as response:  # the body is not read
                return response.is_success
        except httpx.HTTPError:
            return False

    def _command_succeeds(self) -> bool:
        try:
            child = self.children.start(
                "health check",
                Command(
                    argv=["/bin/sh", "-c", self.health], env=self.environ, log=self.log,
                    cwd=self.folder, grace=CHECK_GRACE,
                ),
            )  # fmt: skip
        except (ChildDied, OSError):
            return False
        try:
            return child.wait(CHECK_TIMEOUT) == 0
        except TimeoutError:
            return False
        finally:
            child.stop()


class Instance:
    """Starts one instance in a thread of its own, until `stop` is called."""

    def __init__(
        self,
        service: "Service",
        number: int,
        *,
        children: Children,
        environ: Mapping[str, str | None],
        folder: Path,
        home: Path,
        pick_port: Callable[[], int],
        on_failure: Callable[[ServiceFailed], None],
    ) -> None:
        """Begin to start the instance with that number, from 1.

        Args:
            environ: environment variables of the command, besides its own.
            on_failure: called when the instance is not started again.
        """
        self.service, self.name = service, f"{service.name}-{number}"
        self.log = home.absolute() / "logs" / "services" / f"{self.name}.log"
        self.ready = False
        """Whether attempts may use it."""
        self.starts = 0
        """How often it was started and became ready."""
        self.users = 0
        """Attempts that use it since its last start."""
        self.port, self._scratch = 0, home
        self._children, self._environ, self._folder, self._home = children, environ, folder, home
        self._pick_port, self._on_failure = pick_port, on_failure
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._restart_limit = RestartLimit()
        self._child: Child | None = None
        threading.Thread(target=self._supervise, name=self.name, daemon=True).start()

    @property
    def address(self) -> str:
        """The address that agents get."""
        return self.service.address.replace("{port}", str(self.port))

    def take(self) -> int:
        """Count one more user, and return the number of the start that it uses."""
        with self._lock:
            self.users += 1
            return self.starts

    def release(self, start: int) -> None:
        """Count one user less of this start; a `fresh` instance is started again."""
        with self._lock:
            if start != self.starts or self._child is None or not self._child.alive:
                return
            self.users -= 1
            self._restart_limit = RestartLimit()
            if self.service.fresh:
                self.ready = False
                self._child.request_stop()

    def find_fault(self, start: int) -> str:
        """Return how the instance ended during its use by an attempt; '' if it runs.

        An instance that runs and is not healthy is started again. That is not a fault: the attempt
        may have caused it.
        """
        until = time.monotonic() + DEATH_GRACE
        while (child := self._child_of(start)) is not None:
            if self._check().passes():
                return ""
            if time.monotonic() > until:
                _logger.warning("ltrain: %s is not healthy; starting it again", self.name)
                self.ready = False
                child.stop()
                return ""
            time.sleep(POLL)
        return f"its service {self.name} ended meanwhile. The log of the service is {self.log}"

    def stop(self) -> None:
        """Request the end of the instance and return at once."""
        self._stopping.set()
        with self._lock:
            if self._child is not None:
                self._child.request_stop()

    def _child_of(self, start: int) -> Child | None:
        """Return the process of a start if it runs."""
        with self._lock:
            alive = self._child is not None and self._child.alive and start == self.starts
            return self._child if alive else None

    def _supervise(self) -> None:
        while not self._stopping.is_set():
            try:
                self._watch(self._start())
            except (LtrainError, OSError) as error:
                if self._stopping.is_set() or self._gives_up(error):
                    return
                _logger.warning("ltrain: starting %s again: %s", self.name, error)
                self._stopping.wait(RESTART_PAUSE)

    def _watch(self, child: Child) -> None:
        """Wait for the end of the instance."""
        try:
            child.wait()
            self.ready = False
            child.check()
        finally:
            child.stop()

    def _start(self) -> Child:
        self.port = self._pick_port()
        self._scratch = scratch_path(
            "service", parent=self._home / "services", max_socket_name=MAX_SOCKET_NAME
        )
        child = self._children.start(
            f"service {self.name}",
            Command(
                argv=["/bin/sh", "-c", self.service.command], env=self._own_environment(),
                log=self.log, cwd=self._folder, grace=KILL_GRACE, scratch=self._scratch,
            ),
            ready=lambda: self._stopping.is_set() or self._check().passes(),
            timeout=self.service.start_timeout,
        )  # fmt: skip
        with self._lock:
            self._child, self.starts, self.users = child, self.starts + 1, 0
            self.ready = not self._stopping.is_set()
            if not self.ready:
                child.request_stop()
        return child

    def _own_environment(self) -> dict[str, str | None]:
        own = {"PORT": str(self.port), "LTRAIN_SERVICE_PORT": str(self.port)}
        return {**self._environ, **own, "LTRAIN_SERVICE_FOLDER": str(self._scratch)}

    def _check(self) -> HealthCheck:
        return HealthCheck(
            health=self.service.health,
            port=self.port,
            children=self._children,
            environ=self._own_environment(),
            folder=self._folder,
            log=self.log,
        )

    def _gives_up(self, error: Exception) -> bool:
        """Return whether the instance is not started again, after telling its owner why."""
        with self._lock:
            never_healthy = isinstance(error, ChildNotReady) and not self.starts
            too_often = self._restart_limit.record_death()
        if never_healthy:
            hint = (
                f"It must listen at port $LTRAIN_SERVICE_PORT of 127.0.0.1, here {self.port}. Its "
                f"health check is '{self.service.health}'; start_timeout sets the seconds."
            )
        elif too_often:
            hint = f"It died {MAX_DEATHS} times without serving an attempt."
        else:
            return False
        self._on_failure(ServiceFailed(f"{error}\n{hint}"))
        return True
