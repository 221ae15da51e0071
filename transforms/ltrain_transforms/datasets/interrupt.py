"""Handlers of ctrl-C and SIGTERM, which are deferred while polars works.

The Rust code of polars panics when a signal raises inside one of its calls back to Python.
"""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def defer_interrupts() -> Iterator[Callable[[], None]]:
    """Defer ctrl-C and SIGTERM; yield a function that raises KeyboardInterrupt after one arrived.

    A second signal ends the process at once.
    """
    received: list[int] = []

    def record(number: int, frame: FrameType | None) -> None:
        print("\nltrain: stopping after this batch", file=sys.stderr, flush=True)
        received.append(number)
        signal.signal(number, signal.SIG_DFL)

    def raise_if_interrupted() -> None:
        if received:
            raise KeyboardInterrupt

    with interrupt_handler(record):
        yield raise_if_interrupted


@contextmanager
def interrupt_handler(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle ctrl-C and SIGTERM with `handler`, except a signal that the process ignores."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, earlier in before.items():
        if earlier is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
