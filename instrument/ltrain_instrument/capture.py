"""What this process captures: the provider, the census, and the ways out of the process."""

import atexit
import os
import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter

from ltrain_instrument.attributes import SCOPE_INSTRUMENT
from ltrain_instrument.census import Census

LAST_WORDS = 3.0
"""Seconds that a dying process may spend on its spans."""


class Capture:
    """One provider with its census; `flush` and `farewell` never raise for the network."""

    def __init__(
        self, provider: TracerProvider, census: Census, exporters: Sequence[SpanExporter] = ()
    ) -> None:
        self.provider = provider
        self.census = census
        self._exporters = exporters
        """Those that keep what they could not send; a batch processor never asks them for it."""
        self.tracer = provider.get_tracer(SCOPE_INSTRUMENT)

    def flush(self, timeout: float) -> bool:
        """Hand over all ended spans; True when the collector has them."""
        millis = int(timeout * 1000)
        handed = self.provider.force_flush(millis)
        return all([exporter.force_flush(millis) for exporter in self._exporters]) and handed

    def farewell(self) -> None:
        """Hand over everything, open spans and counts included; can be said again."""
        self.flush(LAST_WORDS)
        self.census.end_open()
        self.census.report_all(self.tracer)
        self.flush(LAST_WORDS)

    def install(self) -> None:
        """Make this the process's capture, and say farewell whichever way it ends."""
        global _current
        _current = self
        os.register_at_fork(after_in_child=self.census.forked)
        atexit.register(self.farewell)
        _on_hard_exit(self.farewell)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                _on_signal(number, self.farewell)


_current: Capture | None = None


def current() -> Capture | None:
    """Give the process's capture; None where ltrain does not instrument."""
    return _current


def flush(timeout: float = 5.0) -> bool:
    """Hand over every span that has ended in this process.

    Gives True when the collector has acknowledged them. Otherwise they are on disk, to be
    forwarded when it is back; a collector that is away is not waited for.
    """
    capture = current()
    if capture is None:
        provider = trace.get_tracer_provider()
        return not isinstance(provider, TracerProvider) or provider.force_flush(int(timeout * 1000))
    answers: list[bool] = []
    _aside(lambda: answers.append(capture.flush(timeout)), timeout)
    return answers == [True]


def _aside(work: Callable[[], None], timeout: float) -> None:
    """Run `work` in a thread, so that no lock stays with an interrupted caller."""
    # The signal that interrupts `flush` must find the export lock in a thread that runs on
    worker = threading.Thread(target=work, name="ltrain-flush", daemon=True)
    worker.start()
    worker.join(timeout)


def _on_signal(number: signal.Signals, farewell: Callable[[], None]) -> None:
    if signal.getsignal(number) is not signal.SIG_DFL:
        return  # the agent has its own way out

    def die(received: int, frame: FrameType | None) -> None:
        _aside(farewell, LAST_WORDS)
        signal.signal(received, signal.SIG_DFL)
        os.kill(os.getpid(), received)

    signal.signal(number, die)


def _on_hard_exit(farewell: Callable[[], None]) -> None:
    """Speak before `os._exit`, which multiprocessing's forked children end with too."""
    leave = os._exit

    def last_words(status: int) -> NoReturn:
        try:
            _aside(farewell, LAST_WORDS)
        finally:
            leave(status)

    os._exit = last_words
