"""Whether a process that is known by its number still runs."""

import os
from pathlib import Path


def is_running(pid: int) -> bool:
    """Return whether there is such a process; a zombie, which waits to be reaped, has ended."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # a folder's name may hold any number
        return False
    except PermissionError:
        pass  # another user's
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # it has just ended, or this system has no /proc
        return not Path("/proc/self").exists()
    return state not in "ZX"
