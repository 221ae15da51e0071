"""Whether an instance of a service is healthy: its port, an HTTP path or a command tells."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from ltrain_train.processes import ChildDied, Children, Command, is_port_open

TCP = "tcp"
"""The check that the port is open."""
TIMEOUT = 5.0
"""Seconds of one check."""
KILL_GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    """A check of one instance, as a recipe's `health` names it."""

    health: str
    port: int
    children: Children
    """What owns the processes of a command."""
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
            with httpx.Client(trust_env=False, timeout=TIMEOUT) as client:
                return client.get(url).is_success
        except httpx.HTTPError:
            return False

    def _command_succeeds(self) -> bool:
        try:
            child = self.children.start(
                "health check",
                Command(
                    argv=["/bin/sh", "-c", self.health], env=self.environ, log=self.log,
                    cwd=self.folder, grace=KILL_GRACE,
                ),
            )  # fmt: skip
        except (ChildDied, OSError):
            return False
        try:
            return child.wait(TIMEOUT) == 0
        except TimeoutError:
            return False
        finally:
            child.stop()
