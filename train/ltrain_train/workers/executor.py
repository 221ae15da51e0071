"""The executor protocol: what runs attempts, as a pool of workers or one command each."""

import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ltrain_instrument.identity import Identity
from ltrain_instrument.prompts import VARIABLE as PROMPTS_VARIABLE
from ltrain_instrument.settings import HOME, OTLP_ENDPOINT
from ltrain_train.sandboxes import SandboxSettings
from ltrain_train.workers.attempt import Attempt, AttemptResult
from ltrain_train.workers.interpreter import OWN_PYTHON
from ltrain_train.workers.reference import is_reference

OnEnd = Callable[[Attempt, AttemptResult], None]
"""Called once with the result of each attempt, from any thread."""

LAUNCHER = "opentelemetry-instrument"
KILL_GRACE = 5.0
"""Seconds between SIGTERM, on which an instrumented process sends its spans, and SIGKILL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProcesses:
    """The processes of an agent on this machine: what they run, and in which surroundings."""

    agent: str
    """`module:function`, which warm workers import, or a command, which runs for each attempt."""
    folder: Path
    environ: dict[str, str | None]
    logs: Path
    workers: int
    """Processes at a time."""
    concurrency: int = 1
    """Attempts at a time in one warm worker."""
    python: Path = OWN_PYTHON
    sandbox: SandboxSettings | None = None
    """The sandbox of each attempt of a command."""
    keep_open: Sequence[int] = ()
    """Descriptors that the guards of the processes keep open until all of them have ended."""


class Executor(Protocol):
    """Runs attempts in processes of the agent."""

    def wait_ready(self, timeout: float) -> None:
        """Wait until one attempt can start, at most `timeout` seconds.

        Raises:
            LtrainError: when the agent cannot be started.
        """

    def free_slots(self, *, isolated: bool = False) -> int:
        """Return how many attempts can start now; if `isolated`, each in a process of its own."""

    def submit(self, attempt: Attempt) -> None:
        """Start an attempt; there must be a free slot."""

    def time_out(self, attempts: Collection[str]) -> None:
        """End the attempts of these execution ids, which exceeded their time limit.

        Their results follow. A call with an attempt that is ending already changes nothing.
        """

    def close(self) -> None:
        """End every process; running attempts get no result."""


def open_executor(processes: AgentProcesses, on_end: OnEnd) -> Executor:
    """Return the executor of an agent; it starts its processes without waiting for them."""
    if is_reference(processes.agent):
        from ltrain_train.workers.worker_pool import WorkerPool

        return WorkerPool(processes, on_end)
    from ltrain_train.workers.command import CommandExecutor

    return CommandExecutor(processes, on_end)


def instrumented_command(argv: list[str], python: Path = OWN_PYTHON) -> list[str]:
    """Return the command line that runs `argv` under the launcher beside a Python."""
    return [shutil.which(LAUNCHER, path=_search_path(python)) or LAUNCHER, *argv]


def agent_environment(
    home: Path, extra: Mapping[str, str | None], python: Path = OWN_PYTHON
) -> dict[str, str | None]:
    """Return the environment variables of an agent's process, without those of its attempt."""
    # an identity in the runner's own environment must not reach the agents
    no_identity = dict.fromkeys(
        [*_ANY_IDENTITY.environ(), "TRACEPARENT", "BAGGAGE", PROMPTS_VARIABLE]
    )
    fixed = {
        "PATH": _search_path(python),
        HOME.name: str(home.resolve()),
        # an agent with a home of its own does not find the collector
        OTLP_ENDPOINT.name: OTLP_ENDPOINT.read(),
    }
    return {**no_identity, **fixed, **extra}


def _search_path(python: Path) -> str:
    """Return PATH with the commands of a Python's environment first."""
    return os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)])


_ANY_IDENTITY = Identity(
    run="", task="", domain="", wave=0, sample=0, rollout="", attempt=0, mode="prod"
)
