"""The executor of an agent's attempts: worker processes, commands, or the gateway's workers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ltrain_train import workers
from ltrain_train.remote import RemoteExecutor
from ltrain_train.rollout.planned_rollout import PlannedRollout
from ltrain_train.rollout.program import AgentProgram
from ltrain_train.schedule import GroupQueue
from ltrain_train.workers import AgentProcesses, Executor, OnEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerEnvironment:
    """The run, the home and the gateway of a runner."""

    run: str
    """Name of the run."""
    home: Path
    gateway: str
    """URL of the gateway."""
    secret: str
    """Secret that signs the keys of gateway and store."""
    policy: str
    """The policy that answers the calls."""
    keep_open: Sequence[int] = ()
    """Descriptors of the run's lock, open until all processes have ended."""


def open_executor(
    program: AgentProgram,
    environment: RunnerEnvironment,
    python: Path,
    environ: dict[str, str | None],
    on_end: OnEnd,
) -> Executor:
    """Return the executor of an agent; it starts its processes without waiting for them.

    Args:
        python: the Python of the agent's processes on this machine.
        environ: variables of these processes.
    """
    if program.agent is None:
        return RemoteExecutor(environment.gateway, environment.secret, on_end=on_end)
    processes = AgentProcesses(
        agent=program.agent, folder=program.folder, environ=environ,
        logs=rollout_logs(environment.home), workers=program.workers,
        concurrency=program.slots, python=python, sandbox=program.sandbox,
        keep_open=environment.keep_open,
    )  # fmt: skip
    return workers.open_executor(processes, on_end)


def next_rollout(executor: Executor, waiting: GroupQueue[PlannedRollout]) -> PlannedRollout | None:
    """Remove and return a rollout that can start now.

    One that needs a process of its own comes first.
    """
    if waiting.has(isolated=True) and executor.free_slots(isolated=True):
        return waiting.pop(isolated=True)
    return waiting.pop() if waiting.has() and executor.free_slots() else None


def rollout_logs(home: Path) -> Path:
    """Return the folder of the logs of workers and commands."""
    return home / "logs" / "rollouts"
