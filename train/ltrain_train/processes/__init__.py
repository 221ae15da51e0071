"""Child processes and the files they share: one owner each, nothing left behind."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.processes.children import (
        MAX_DEATHS,
        Child,
        ChildDied,
        ChildNotReady,
        Children,
        Command,
        RestartLimit,
        Supervised,
    )
    from ltrain_train.processes.disk import (
        MIN_FREE,
        disk_error,
        disk_full_error,
        free_bytes,
        require_space,
    )
    from ltrain_train.processes.json_lines import JsonChild, JsonPipes
    from ltrain_train.processes.locks import GpuTurn, RunLock, run_lock
    from ltrain_train.processes.pages import serve_pages
    from ltrain_train.processes.ports import NoFreePort, free_port, is_port_open
    from ltrain_train.processes.scratch import compile_cache, scratch_path

open_face(__name__)
