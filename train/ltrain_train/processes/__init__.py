"""Child processes and the files they share: one owner each, nothing left behind."""

from ltrain_train.processes.children import (
    DEATH_WINDOW,
    MAX_DEATHS,
    Child,
    ChildDied,
    ChildNotReady,
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
from ltrain_train.processes.locks import RunLock, run_lock
from ltrain_train.processes.pages import serve_pages
from ltrain_train.processes.ports import NoFreePort, free_port, is_port_open
from ltrain_train.processes.scratch import compile_cache, scratch_path

__all__ = [
    "DEATH_WINDOW",
    "MAX_DEATHS",
    "MIN_FREE",
    "Child",
    "ChildDied",
    "ChildNotReady",
    "Children",
    "NoFreePort",
    "RestartLimit",
    "RunLock",
    "compile_cache",
    "disk_full_error",
    "free_bytes",
    "free_port",
    "is_disk_full",
    "is_port_open",
    "require_space",
    "run_lock",
    "scratch_path",
    "serve_pages",
]
