"""What carries attempts to an agent: warm workers, or one command an attempt."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from ltrain_instrument.identity import Identity
from ltrain_train.rollout.attempt import Attempt, Ending

Ended = Callable[[Attempt, Ending], None]
"""Told once of each attempt, from any thread."""

LAUNCHER = "opentelemetry-instrument"
KILL_GRACE = 5.0
"""Seconds between SIGTERM, at which an instrumented process sends its spans, and SIGKILL."""


class Lane(Protocol):
    def wait_ready(self, timeout: float) -> None:
        """Wait until one attempt can start.

        Raises:
            LtrainError: when the agent cannot be started.
        """

    def room(self, *, alone: bool = False) -> int:
        """Count the attempts that can start now, or those that can have a process to themselves."""

    def submit(self, attempt: Attempt) -> None:
        """Start an attempt; there must be room."""

    def expire(self) -> None:
        """End the attempts whose deadline has passed."""

    def close(self) -> None:
        """End every process; attempts that run end without a word."""


def instrumented(argv: list[str]) -> list[str]:
    """Give the command line that runs `argv` under OpenTelemetry's launcher."""
    path = os.pathsep.join([str(scripts()), os.environ.get("PATH", os.defpath)])
    return [shutil.which(LAUNCHER, path=path) or LAUNCHER, *argv]


def scripts() -> Path:
    """Give the folder of this environment's commands."""
    return Path(sys.executable).parent


def environment(home: Path, extra: Mapping[str, str | None]) -> dict[str, str | None]:
    """Give what an agent's process finds in its environment, but for its attempt."""
    path = os.pathsep.join([str(scripts()), os.environ.get("PATH", os.defpath)])
    # an identity around the runner itself is not the agents'
    nobody = dict.fromkeys([*_ANYBODY.environ(), "TRACEPARENT", "BAGGAGE"])
    return {**nobody, "PATH": path, "LTRAIN_HOME": str(home.resolve()), **extra}


_ANYBODY = Identity(
    run="", task="", domain="", wave=0, sample=0, rollout="", attempt=0, mode="prod"
)
