"""Waiting for a store that is away for a moment, restarting or killed, instead of failing a run."""

import time
from collections.abc import Callable
from typing import TypeVar

from ltrain_collector.errors import NO_CODE, QueryFailed, StoreUnreachable

T = TypeVar("T")

LONGEST = 60.0
"""Seconds that a store may be away."""
PAUSE = 0.5


def patiently(ask: Callable[[], T], longest: float = LONGEST) -> T:
    """Ask until the store answers; `ask` only reads, so asking twice is asking once.

    Raises:
        StoreUnreachable: when it is away for more than `longest` seconds.
        QueryFailed: when it answers, with an error of its own.
    """
    until = time.monotonic() + longest
    while True:
        try:
            return ask()
        except (StoreUnreachable, QueryFailed) as error:
            # an error without ClickHouse's number is a connection's, not a query's
            away = isinstance(error, StoreUnreachable) or error.code == NO_CODE
            if not away or time.monotonic() > until:
                raise
        time.sleep(PAUSE)
