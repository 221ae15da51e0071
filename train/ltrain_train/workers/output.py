"""The output of an agent's processes, and its limit."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ltrain_train.processes import Child

MAX_OUTPUT_BYTES = 64 << 20
"""Bytes that an attempt may print: more of them, of many attempts, would fill the disk."""
OUTPUT_POLL = 0.5
"""Seconds between two looks at what a process has printed."""


def is_excess(printed: int, attempts: int = 1) -> bool:
    """Return whether so many bytes are more than some attempts may print together."""
    return printed > attempts * MAX_OUTPUT_BYTES


def describe_excess(printer: str) -> str:
    """Return why an attempt ends whose process has printed too much."""
    return f"{printer} printed more than {MAX_OUTPUT_BYTES >> 20} MiB"


def watch_output(child: Child, files: Sequence[Path]) -> Iterator[int]:
    """Yield the bytes that a process has printed to its files, again and again until it ends.

    Files that exceed the limit are cut to half of it.
    """
    cut, running = 0, True
    while running:
        with suppress(TimeoutError):
            child.wait(OUTPUT_POLL)
            running = False
        size = _size(files)
        yield cut + size
        if is_excess(size):
            for file in files:
                if file.exists():
                    os.truncate(file, min(file.stat().st_size, MAX_OUTPUT_BYTES // 2))
            cut += size - _size(files)


def _size(files: Sequence[Path]) -> int:
    return sum(file.stat().st_size for file in files if file.exists())
