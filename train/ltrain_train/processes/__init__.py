"""Child processes and the files they share: one owner each, nothing left behind."""

from ltrain_train.processes.children import (
    DEATH_WINDOW,
    MAX_DEATHS,
    Child,
    ChildDied,
    Children,
    RestartLimit,
)
from ltrain_train.processes.disk import (
    MIN_FREE,
    disk_full_error,
    free_bytes,
    is_disk_full,
    require_space,
)
from ltrain_train.processes.locks import RunLock, hold_file, is_held, run_lock
from ltrain_train.processes.scratch import scratch_path

__all__ = [
    "DEATH_WINDOW",
    "MAX_DEATHS",
    "MIN_FREE",
    "Child",
    "ChildDied",
    "Children",
    "RestartLimit",
    "RunLock",
    "disk_full_error",
    "free_bytes",
    "hold_file",
    "is_disk_full",
    "is_held",
    "require_space",
    "run_lock",
    "scratch_path",
]
