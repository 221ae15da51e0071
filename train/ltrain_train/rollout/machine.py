"""What the machine did to its processes, as the kernel counts it."""

from pathlib import Path

VMSTAT = Path("/proc/vmstat")


def oom_kills() -> int:
    """Return how many processes the kernel has killed for memory; 0 where it does not say."""
    try:
        lines = VMSTAT.read_text().splitlines()
    except OSError:
        return 0
    counts = dict(line.split(maxsplit=1) for line in lines)
    return int(counts.get("oom_kill", 0))
