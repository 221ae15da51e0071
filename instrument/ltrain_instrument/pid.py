"""Whether the process with a given id still runs."""

import os
from pathlib import Path


def is_running(pid: int) -> bool:
    """Return whether the process runs; a zombie counts as ended."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # an id parsed from a folder name may be any number
        return False
    except PermissionError:
        pass  # it belongs to another user
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # the process has just ended, or this system has no /proc
        return not Path("/proc/self").exists()
    return state not in "ZX"
