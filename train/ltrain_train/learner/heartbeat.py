"""The learner's heartbeat: a file that its ranks touch while they compute.

A rank touches the file when a layer of the model starts, at most once a second. So a rank that is
stopped, or that waits for another one forever, has no heartbeat.
"""

import time
from pathlib import Path

FILE = "heartbeat"
INTERVAL = 1.0
"""Seconds between two heartbeats."""


def beat_on_forward(folder: Path) -> None:
    """Touch the file in `folder` whenever a layer of any model in this process starts."""
    from torch.nn.modules.module import register_module_forward_pre_hook

    file, last = folder / FILE, float("-inf")

    def beat(*_: object) -> None:
        nonlocal last
        if (now := time.monotonic()) > last + INTERVAL:
            last = now
            file.touch()

    register_module_forward_pre_hook(beat)


class ProgressClock:
    """Measures the seconds since the last sign of progress: a request or a heartbeat."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._beat = 0
        self.restart()

    def restart(self) -> None:
        """Count from now."""
        self._since = time.monotonic()

    def seconds(self) -> float:
        """Return the seconds without progress."""
        try:
            beat = self._file.stat().st_mtime_ns
        except FileNotFoundError:
            beat = 0
        if beat != self._beat:
            self._beat = beat
            self.restart()
        return time.monotonic() - self._since
