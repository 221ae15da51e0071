"""Time: limits and ages count monotonic seconds, and the wall clock only labels.

* A step of the wall clock changes no limit and no age, and neither does the sleep of the machine.
* The processes of a machine share its monotonic clock, from one boot to the next. For a time that
  comes from another machine, the wall clock decides.
"""

import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_IMPORTED = time.time() - time.monotonic()


def steady_time() -> float:
    """Return the Unix seconds by the clock as it was at the start of the process."""
    return _IMPORTED + time.monotonic()


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment at which something ends, which other processes may read."""

    wall: float
    """Unix seconds, by the clock of the machine that set it."""
    boot: str
    """The boot of that machine; '' if its system has no id of it."""
    monotonic: float
    """Monotonic seconds of that boot."""

    @classmethod
    def after(cls, seconds: float) -> Self:
        """Return the moment `seconds` from now."""
        return cls(time.time() + seconds, _boot(), time.monotonic() + seconds)

    @property
    def left(self) -> float:
        """Seconds until the moment; 0 or less when it is over."""
        if self.boot and self.boot == _boot():
            return self.monotonic - time.monotonic()
        return self.wall - time.time()


@cache
def _boot() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""
