"""How many connections a process may hold: its open descriptors, less what its engine needs.

A new descriptor has the lowest free number, so a connection's number says how many are open at
least, whoever opened them. ClickHouse fails in mid-query when there is none left for it.
"""

import os
import resource
from dataclasses import dataclass
from typing import Self

MOST = 1 << 20
"""Descriptors that are asked for; some systems allow a thousand million."""

RESERVE = 8192
"""Descriptors for the engine: files of parts and the pipelines of eight queries. Where the limit is
low it gets half of those that were free when the server started."""


@dataclass(frozen=True, slots=True)
class Descriptors:
    """The numbers that connections may have."""

    limit: int
    """The process's own limit."""
    used: int
    """Descriptors that were open when the server started."""

    @classmethod
    def now(cls) -> Self:
        """Return the limit and what is open."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = MOST if soft == resource.RLIM_INFINITY else soft
        return cls(limit, len(os.listdir("/proc/self/fd")))

    @property
    def reserve(self) -> int:
        """Descriptors that connections leave free."""
        return min(max(self.limit - self.used, 0) // 2, RESERVE)

    @property
    def served(self) -> int:
        """A connection whose number is below this is served."""
        return self.limit - self.reserve

    @property
    def answered(self) -> int:
        """A connection whose number is below this hears why it is not served."""
        return self.limit - self.reserve * 3 // 4


def raise_limit() -> None:
    """Raise this process's limit as far as the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
