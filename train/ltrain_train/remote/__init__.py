"""Rollouts on other machines: workers take attempts from the gateway over HTTP."""

from ltrain_train.remote.executor import RemoteExecutor
from ltrain_train.remote.worker import WorkerOptions, run_worker

__all__ = ["RemoteExecutor", "WorkerOptions", "run_worker"]
