"""The kernel's count of processes killed for lack of memory."""

from pathlib import Path

VMSTAT = Path("/proc/vmstat")


def count_oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory; 0 if unknown."""
    try:
        lines = VMSTAT.read_text().splitlines()
    except OSError:
        return 0
    counts = dict(line.split(maxsplit=1) for line in lines)
    return int(counts.get("oom_kill", 0))
