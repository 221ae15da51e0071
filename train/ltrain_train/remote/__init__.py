"""Rollouts on other machines: workers take attempts from the gateway over HTTP."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.remote.executor import RemoteExecutor
    from ltrain_train.remote.worker import WorkerOptions, run_worker

open_face(__name__)
