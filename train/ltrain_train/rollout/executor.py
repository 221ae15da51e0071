"""What runs the attempts of an agent: worker processes, commands, or the gateway's workers."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ltrain_train.remote import RemoteExecutor
from ltrain_train.rollout.planned_rollout import PlannedRollout
from ltrain_train.schedule import GroupQueue
from ltrain_train.workers import (
    Attempt,
    AttemptResult,
    CommandExecutor,
    Executor,
    WorkerPool,
    is_reference,
)

OnEnd = Callable[[Attempt, AttemptResult], None]


def open_executor(
    agent: str | None,
    on_end: OnEnd,
    *,
    folder: Path,
    environ: dict[str, str | None],
    logs: Path,
    workers: int,
    concurrency: int,
    python: Path,
    gateway: str,
    secret: str,
    gateway_given_up: Callable[[], str],
    keep_open: Sequence[int],
) -> Executor:
    """Return the executor of an agent; it starts its processes without waiting for them.

    Args:
        agent: `module:function`, a command, or None for the agent of the gateway's workers.
        on_end: called with each attempt that has ended.
        folder: folder of the agent.
        environ: variables of the agent's processes on this machine.
        logs: folder of the logs of these processes.
        workers: number of these processes.
        concurrency: rollouts at a time in one process that imports the agent.
        python: the Python of these processes.
        gateway: URL of the gateway.
        secret: secret of the gateway.
        gateway_given_up: returns why no gateway will answer again; '' while one may.
        keep_open: descriptors that stay open until all processes have ended.
    """
    if agent is None:
        return RemoteExecutor(gateway, secret, on_end=on_end, given_up=gateway_given_up)
    if is_reference(agent):
        return WorkerPool(
            agent,
            folder=folder,
            environ=environ,
            logs=logs,
            workers=workers,
            concurrency=concurrency,
            on_end=on_end,
            python=python,
            keep_open=keep_open,
        )
    return CommandExecutor(
        agent,
        folder=folder,
        environ=environ,
        logs=logs,
        workers=workers,
        on_end=on_end,
        python=python,
        keep_open=keep_open,
    )


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
