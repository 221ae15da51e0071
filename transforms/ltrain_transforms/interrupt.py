"""Ctrl-C while polars works: its Rust code panics on one that falls into a call back to Python."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_back() -> Iterator[Callable[[], None]]:
    """Hold ctrl-C and SIGTERM back; what is given raises KeyboardInterrupt once one came.

    A second one ends the process at once.
    """
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        print("\nltrain: stopping after this batch", file=sys.stderr, flush=True)
        came.append(number)
        signal.signal(number, signal.SIG_DFL)

    def due() -> None:
        if came:
            raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, note)
    try:
        yield due
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
