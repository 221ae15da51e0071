"""Limit connections to the process's descriptors, less a reserve for its engine.

A new descriptor has the lowest free number, so the number of a connection's descriptor is a lower
bound of the open ones. ClickHouse fails in the middle of a query if none is left.
"""

import os
import resource
from dataclasses import dataclass
from typing import Self

from ltrain_collector.errors import TooFewDescriptors
from ltrain_instrument.machine import MORE_FILES

MAX_DESCRIPTORS = 1 << 20
"""Descriptors to request; some systems allow a thousand million."""

MIN_DESCRIPTORS = 256
"""Limit of descriptors without which no store is opened: an idle engine has a hundred open."""

RESERVE = 8192
"""Descriptors for the engine: files of parts and the pipelines of eight queries. With a low limit,
it gets half of those that were free when the server started."""


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Limits of the descriptor numbers of connections."""

    limit: int
    """The process's own limit."""
    used: int
    """Descriptors that were open when the server started."""

    @classmethod
    def measure(cls) -> Self:
        """Return the process's limit and its open descriptors."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
        return cls(limit, len(os.listdir("/proc/self/fd")))

    @property
    def reserve(self) -> int:
        """Descriptors that connections leave free."""
        return min(max(self.limit - self.used, 0) // 2, RESERVE)

    @property
    def served(self) -> int:
        """Connections with a descriptor below this number are served."""
        return self.limit - self.reserve

    @property
    def answered(self) -> int:
        """Connections with a descriptor below this number get an error response."""
        return self.limit - self.reserve * 3 // 4


def require_descriptors() -> None:
    """Raise the limit of descriptors, and check that it is enough to open a store.

    Raises:
        TooFewDescriptors: it is below `MIN_DESCRIPTORS`.
    """
    raise_limit()
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < MIN_DESCRIPTORS:
        raise TooFewDescriptors(
            f"This process may have {soft} files open, and a store needs at least "
            f"{MIN_DESCRIPTORS}. {MORE_FILES} in its shell, or in its service."
        )


def raise_limit() -> None:
    """Raise this process's limit of descriptors as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
