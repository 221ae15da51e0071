"""Ctrl-C and SIGTERM: who hears them, and that they wait while polars works.

Polars' Rust code panics on one that falls into a call back to Python.
"""

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

    with heard_by(note):
        yield due


@contextmanager
def heard_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have ctrl-C and SIGTERM go to `handler`, unless they are ignored, and then as before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, earlier in before.items():
        if earlier is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
