"""Processes that run an agent's code: warm workers and commands."""

from ltrain_train.workers.attempt import (
    COUNTED_OUTCOMES,
    MAX_TRIES,
    Attempt,
    AttemptResult,
    Endpoint,
    Outcome,
    RolloutResult,
    WaveResult,
)
from ltrain_train.workers.command import CommandExecutor
from ltrain_train.workers.executor import Executor, agent_environment
from ltrain_train.workers.reference import code_digest, is_reference, load_function
from ltrain_train.workers.worker_pool import WorkerPool

__all__ = [
    "COUNTED_OUTCOMES",
    "MAX_TRIES",
    "Attempt",
    "AttemptResult",
    "CommandExecutor",
    "Endpoint",
    "Executor",
    "Outcome",
    "RolloutResult",
    "WaveResult",
    "WorkerPool",
    "agent_environment",
    "code_digest",
    "is_reference",
    "load_function",
]
