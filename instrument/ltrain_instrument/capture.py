"""What this process captures: the provider, the census, and the ways out of the process."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from ltrain_instrument.attributes import SCOPE_INSTRUMENT
from ltrain_instrument.census import Census
from ltrain_instrument.gate import Gate, put_in_gate

if TYPE_CHECKING:
    from ltrain_instrument.export import SpoolProcessor

LAST_WORDS = 1.5
"""Seconds that a dying process waits for the collector; then what is left goes to disk."""
LAST_BREATH = 2.0
"""Seconds after which a dying process is let go, whatever holds its spans up."""
SPAWNED = "LTRAIN_SPAWNED"
"""Set in the environment of an instrumented process's children, whose stderr an agent may read."""
FATAL = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a process at once where the agent does not handle them."""


class Capture:
    """One provider with its census; `flush` and `farewell` never raise for the network."""

    def __init__(
        self, provider: TracerProvider, census: Census, spooling: Sequence[SpoolProcessor] = ()
    ) -> None:
        self.provider = provider
        self.census = census
        self._spooling = spooling
        """Those of the provider's processors that keep spans on disk."""
        self._until: float | None = None
        """When the network's time is up, once this process is leaving."""
        self._speaking = False
        self._gate = Gate()
        if spooling:
            put_in_gate(provider, self._gate)
        self.tracer = census.tracer = provider.get_tracer(SCOPE_INSTRUMENT)

    def flush(self, timeout: float) -> bool:
        """Hand over all ended spans; True when the collector has them."""
        return self.provider.force_flush(int(timeout * 1000))

    def farewell(self) -> None:
        """Hand over everything, open spans and counts included; can be said again."""
        self._until = self._until or time.monotonic() + LAST_WORDS
        self._speaking = True
        try:
            for processor in self._spooling:
                processor.hurry(self._until)
            for leave in _leaving:
                leave()
            self.census.leave()
            self.census.report_all(self.tracer)
            self.flush(LAST_WORDS)
            for processor in self._spooling:
                processor.say_what_is_lost()
                if SPAWNED not in os.environ:
                    processor.say_what_waits()
        finally:
            self._speaking = False

    def stay(self) -> None:
        """Take a farewell back, in a process that lives on."""
        self._until, self._speaking = None, False
        for processor in self._spooling:
            processor.unhurried()
        self.census.stay()

    def install(self) -> None:
        """Make this the process's capture, and say farewell whichever way it ends."""
        global _current
        _current = self
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self.farewell)
        _on_hard_exit(self.farewell)
        if threading.current_thread() is threading.main_thread():
            _on_signals(self._die)

    def _forked(self) -> None:
        self.stay()
        self.census.forked()

    def _die(self, number: int, frame: FrameType | None) -> None:
        if self._speaking:
            return  # on the way out already; this frame sits on locks that the last words need
        self._gate.after(lambda: self._end_by(number))

    def _end_by(self, number: int) -> None:
        aside(self.farewell, LAST_BREATH)
        _set_signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


_current: Capture | None = None


_leaving: list[Callable[[], None]] = []


def on_farewell(leave: Callable[[], None]) -> None:
    """Call `leave` before the open spans of a process that ends are ended for their owners."""
    _leaving.append(leave)


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
    aside(lambda: answers.append(capture.flush(timeout)), timeout)
    return answers == [True]


def aside(work: Callable[[], None], timeout: float) -> None:
    """Run `work` in a thread, so that no lock stays with an interrupted caller."""
    # The signal that interrupts `flush` must find the export lock in a thread that runs on
    worker = threading.Thread(target=work, name="ltrain-flush", daemon=True)
    # Python 3.12 starts none at interpreter exit, where atexit has said farewell
    with contextlib.suppress(RuntimeError):
        worker.start()
        worker.join(timeout)


_set_signal, _get_signal = signal.signal, signal.getsignal


def _on_signals(die: Callable[[int, FrameType | None], None]) -> None:
    """Stand in for the default action of the fatal signals, which the agent still sees as such."""

    def shown(handler: Any) -> Any:
        return signal.SIG_DFL if handler == die else handler

    def set_signal(signalnum: int, handler: Any) -> Any:
        ours = handler == signal.SIG_DFL and signalnum in FATAL
        return shown(_set_signal(signalnum, die if ours else handler))

    def get_signal(signalnum: int) -> Any:
        return shown(_get_signal(signalnum))

    for number in FATAL:
        if _get_signal(number) == signal.SIG_DFL:  # else the agent, or nohup, has its own way
            _set_signal(number, die)
    signal.signal, signal.getsignal = set_signal, get_signal


def _on_hard_exit(farewell: Callable[[], None]) -> None:
    """Speak before `os._exit`, which multiprocessing's forked children end with too."""
    leave = os._exit

    def last_words(status: int) -> NoReturn:
        try:
            aside(farewell, LAST_BREATH)
        finally:
            leave(status)

    os._exit = last_words
