"""The recording of spans in this process: the provider, the span counter and the shutdown."""

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

from ltrain_instrument import patches
from ltrain_instrument.attributes import SCOPE_INSTRUMENT
from ltrain_instrument.delivery import SignalGate, gate_processors
from ltrain_instrument.lifecycle.span_counter import SpanCounter

if TYPE_CHECKING:
    from ltrain_instrument.delivery import SpoolSpanProcessor

SHUTDOWN_FLUSH_TIMEOUT = 1.5
"""Seconds that an exiting process waits for the collector; the remaining spans stay on disk."""
SHUTDOWN_TIMEOUT = 2.0
"""Seconds after which a shutdown is abandoned, so that it never delays the exit further."""
SPAWNED_VARIABLE = "LTRAIN_SPAWNED"
"""Set in the environment of an instrumented process's children, whose stderr an agent may read."""
FATAL_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a process immediately if the agent does not handle them."""


class Capture:
    """One provider with its span counter; `flush` and `shutdown` never raise network errors."""

    def __init__(
        self,
        provider: TracerProvider,
        span_counter: SpanCounter,
        spool_processors: Sequence[SpoolSpanProcessor] = (),
    ) -> None:
        self.provider = provider
        self.span_counter = span_counter
        self._spool_processors = spool_processors
        """The provider's processors that write spans to disk."""
        self._deadline: float | None = None
        """End of the time for the network, on the monotonic clock, once the process exits."""
        self._shutting_down = False
        self._gate = SignalGate()
        if spool_processors:
            gate_processors(provider, self._gate)
        self.tracer = span_counter.tracer = provider.get_tracer(SCOPE_INSTRUMENT)

    def flush(self, timeout: float) -> bool:
        """Send all ended spans; return True when the collector has them."""
        return self.provider.force_flush(int(timeout * 1000))

    def shutdown(self) -> None:
        """Send everything, with open spans and counts; may be called again."""
        self._deadline = self._deadline or time.monotonic() + SHUTDOWN_FLUSH_TIMEOUT
        self._shutting_down = True
        try:
            for processor in self._spool_processors:
                processor.set_deadline(self._deadline)
            for hook in _shutdown_hooks:
                hook()
            self.span_counter.end_open_spans()
            self.span_counter.report_all(self.tracer)
            self.flush(SHUTDOWN_FLUSH_TIMEOUT)
            for processor in self._spool_processors:
                processor.warn_of_lost_spans()
                if SPAWNED_VARIABLE not in os.environ:
                    processor.warn_of_waiting_spans()
        finally:
            self._shutting_down = False

    def cancel_shutdown(self) -> None:
        """Undo `shutdown`, in a process that continues."""
        self._deadline, self._shutting_down = None, False
        for processor in self._spool_processors:
            processor.clear_deadline()
        self.span_counter.resume()

    def install(self) -> None:
        """Make this the capture of the process, and shut it down however the process ends."""
        global _current
        _current = self
        os.register_at_fork(after_in_child=self._reset_after_fork)
        if patches.ATEXIT.is_enabled():
            atexit.register(self.shutdown)
        if patches.EXIT.is_enabled():
            _patch_os_exit(self.shutdown)
        if patches.SIGNALS.is_enabled() and threading.current_thread() is threading.main_thread():
            _patch_signals(self._on_fatal_signal)

    def _reset_after_fork(self) -> None:
        self.cancel_shutdown()
        self.span_counter.reset_after_fork()

    def _on_fatal_signal(self, number: int, frame: FrameType | None) -> None:
        if self._shutting_down:
            return  # this frame may hold locks that the running shutdown needs
        self._gate.run_outside(lambda: self._exit_by_signal(number))

    def _exit_by_signal(self, number: int) -> None:
        run_in_thread(self.shutdown, SHUTDOWN_TIMEOUT)
        _set_signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


_current: Capture | None = None


_shutdown_hooks: list[Callable[[], None]] = []


def on_shutdown(hook: Callable[[], None]) -> None:
    """Call `hook` at process exit, before spans that are still open are ended."""
    _shutdown_hooks.append(hook)


def current_capture() -> Capture | None:
    """Return the capture of the process; None if ltrain does not instrument it."""
    return _current


def flush(timeout: float = 5.0) -> bool:
    """Send every span that has ended in this process, within `timeout` seconds.

    Return True when the collector has acknowledged them. Otherwise they are on disk and are sent
    when it is back; `flush` does not wait for an unreachable collector.
    """
    capture = current_capture()
    if capture is None:
        provider = trace.get_tracer_provider()
        return not isinstance(provider, TracerProvider) or provider.force_flush(int(timeout * 1000))
    results: list[bool] = []
    run_in_thread(lambda: results.append(capture.flush(timeout)), timeout)
    return results == [True]


def run_in_thread(work: Callable[[], None], timeout: float) -> None:
    """Run `work` in a thread, so that an interrupted caller holds no lock."""
    # After a signal interrupts `flush`, the thread goes on and releases the export lock
    worker = threading.Thread(target=work, name="ltrain-flush", daemon=True)
    # Python 3.12 starts no thread at interpreter exit; atexit has shut down by then
    with contextlib.suppress(RuntimeError):
        worker.start()
        worker.join(timeout)


_set_signal, _get_signal = signal.signal, signal.getsignal


def _patch_signals(on_fatal_signal: Callable[[int, FrameType | None], None]) -> None:
    """Replace the default action of the fatal signals; the agent still sees SIG_DFL."""

    def visible_handler(handler: Any) -> Any:
        return signal.SIG_DFL if handler == on_fatal_signal else handler

    def set_signal(signalnum: int, handler: Any) -> Any:
        is_replaced = handler == signal.SIG_DFL and signalnum in FATAL_SIGNALS
        return visible_handler(_set_signal(signalnum, on_fatal_signal if is_replaced else handler))

    def get_signal(signalnum: int) -> Any:
        return visible_handler(_get_signal(signalnum))

    for number in FATAL_SIGNALS:
        if _get_signal(number) == signal.SIG_DFL:  # else the agent, or nohup, handles it
            _set_signal(number, on_fatal_signal)
    signal.signal, signal.getsignal = set_signal, get_signal


def _patch_os_exit(shutdown: Callable[[], None]) -> None:
    """Shut down before `os._exit`, with which multiprocessing's forked children end too."""
    original = os._exit

    def exit_after_shutdown(status: int) -> NoReturn:
        try:
            run_in_thread(shutdown, SHUTDOWN_TIMEOUT)
        finally:
            original(status)

    os._exit = exit_after_shutdown
