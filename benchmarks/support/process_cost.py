"""The cost of a process: its CPU seconds, and the peak memory of it and its descendants."""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

TICKS = os.sysconf("SC_CLK_TCK")
IDLE = 1.0
"""Seconds between two measurements of a process that may be idle."""
WATCH = 0.5
"""Seconds between two measurements of memory."""


NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
"""With this variable every process would compile ltrain again; an installed one is compiled."""


@dataclass(frozen=True, slots=True)
class CommandCost:
    """The cost of a command that has ended."""

    seconds: float
    cpu: float
    """CPU seconds of all its processes."""
    peak: int
    """Peak memory of all its processes together, in bytes."""
    output: str


def cpu_seconds(folder: str) -> float:
    """Return the CPU seconds of a process or thread, by its folder in /proc."""
    fields = Path(folder, "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def idle_cpu_seconds(process: str) -> float:
    """Wait until the process is idle, and return its CPU seconds."""
    before = cpu_seconds(process)
    while True:
        time.sleep(IDLE)
        now = cpu_seconds(process)
        if now - before < 0.05:
            return now
        before = now


def children_cpu_seconds() -> float:
    """Return the CPU seconds of the children that have ended, and of their descendants."""
    return _usage(resource.RUSAGE_CHILDREN)


def own_cpu_seconds() -> float:
    """Return the CPU seconds of this process, and those of `children_cpu_seconds`."""
    return _usage(resource.RUSAGE_SELF) + children_cpu_seconds()


def _usage(whose: int) -> float:
    used = resource.getrusage(whose)
    return used.ru_utime + used.ru_stime


def run_measured(command: Sequence[str]) -> CommandCost:
    """Run a command and return its cost; its failure ends this process."""
    before, start = children_cpu_seconds(), time.monotonic()
    # a file, because a pipe that nobody reads meanwhile would block the command
    with TemporaryFile("w+") as file, subprocess.Popen(command, stdout=file) as process:
        peak = _peak_memory(process)
        seconds = time.monotonic() - start
        file.seek(0)
        output = file.read()
    if process.returncode:
        sys.exit(process.returncode)
    return CommandCost(seconds, children_cpu_seconds() - before, peak, output)


def _peak_memory(process: "subprocess.Popen[bytes]") -> int:
    """Wait for the process and return the peak memory of it and its descendants, in bytes."""
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(map(_memory, _with_descendants(process.pid))))
        time.sleep(WATCH)
    return peak


def _with_descendants(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _with_descendants(int(child))


def _memory(pid: int) -> int:
    """Return the proportional set size of a process, in bytes."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
