"""A directory of OTLP requests on their way to the collector.

Rules: what `append` has returned for is on disk until a collector has acknowledged it. A collector
that is away costs the caller nothing. What a dead process left is forwarded by any other spool on
the directory. What the collector refuses is kept in `refused/`, a file with damage in `damaged/`,
and both are counted. No folder outgrows LTRAIN_SPOOL_LIMIT by more than a few requests; the oldest
ones stay.
"""

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from ltrain_instrument import settings
from ltrain_instrument.allowance import Allowance
from ltrain_instrument.aside import Aside
from ltrain_instrument.delivery import Authorization, Delivery, Fate, Receipt, traces_url
from ltrain_instrument.forwarding import Forwarder, Waiting
from ltrain_instrument.memory import Memory
from ltrain_instrument.once import Once
from ltrain_instrument.orphans import Orphans
from ltrain_instrument.segment import Segment

GATHER = 0.01
"""Seconds between the first append and the request, in which others join it."""
RESCAN = 1.0
"""Seconds between two looks for segments whose owner died."""
PATIENCE = 2.0
"""Seconds without an answer after which a collector counts as away."""
SILENCE = 1.0
"""Seconds without an answer after which a process that ends says so; its flush waits for 1.5."""


class Spool:
    """Takes serialised OTLP trace requests and forwards them from a thread of its own."""

    def __init__(
        self,
        directory: Path,
        endpoint: str | None = None,
        *,
        limit: int | None = None,
        gather: float = GATHER,
        rescan: float = RESCAN,
        memory: int = 0,
        authorization: Authorization | None = None,
    ) -> None:
        """Open the folder.

        `limit` is in MiB, that of LTRAIN_SPOOL_LIMIT if not given; `memory` is how many bytes that
        the disk did not take are held until the collector takes them. All that lies in the folder
        is sent with `authorization`, whoever put it there.
        """
        self.directory = directory
        limit = (settings.SPOOL_LIMIT.read() if limit is None else limit) << 20
        self._gather, self._rescan, self._memory = gather, rescan, memory
        self._allowance = Allowance(directory, limit)
        self._warn = Once()
        self._orphans = Orphans(directory, Aside(directory / "damaged", limit), self._warn)
        self._delivery = Delivery(traces_url(endpoint), timeout=30.0, authorization=authorization)
        self._forwarder = Forwarder(
            self._delivery,
            Aside(directory / "refused", limit),
            self._warn,
            note=self.note,
            pause=self._pause,
        )
        self.trouble = ""
        """Why the last request did not pass; '' when it did."""
        self.disk_error: OSError | None = None
        """Why the disk did not take the last request that it refused."""
        self._open: Segment | None = None
        self._sending: Waiting | None = None
        self._reset()
        self._start()
        fork = weakref.WeakMethod(self._forked)
        os.register_at_fork(after_in_child=lambda: (forked := fork()) and forked())

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._look = True
        """Whether to look for orphans before the spool counts as empty."""
        self._look_again = 0.0
        """When to look for orphans next, however busy this process is."""
        self._orphan_next = False
        """Whether an orphan goes before what this process has appended."""
        self._closed = False
        self.away = False
        """Whether the collector did not take the last request that it was sent."""
        self._spoke = time.monotonic()
        """When the collector last answered, or was first asked."""
        self._held = Memory()
        self._waits = False
        """Whether something was appended that is not being sent yet."""
        self._thread: threading.Thread | None = None

    def _forked(self) -> None:
        """Leave segments and thread to the parent; the child starts its own when it appends."""
        for waiting in (self._open, self._sending):
            if isinstance(waiting, Segment):
                waiting.abandon()
        self._open = self._sending = None
        self._reset()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="ltrain-spool", daemon=True)
        # Python 3.12 starts no thread at interpreter exit; the bytes wait for another spool then
        with contextlib.suppress(RuntimeError):
            self._thread.start()

    @property
    def empty(self) -> bool:
        """Whether all that was appended and adopted is with the collector."""
        return not (self._waits or self._look) and self._sending is None

    @property
    def held(self) -> int:
        """Requests that are in memory only."""
        return sum(map(len, self._memories))

    @property
    def _memories(self) -> list[Memory]:
        return [each for each in (self._held, self._sending) if isinstance(each, Memory)]

    @property
    def refused(self) -> int:
        """Requests that the collector will never take."""
        return self._forwarder.refused

    @property
    def dropped(self) -> int:
        """Those of them that `refused/` did not take."""
        return self._forwarder.dropped

    @property
    def damaged(self) -> int:
        """Files of which something or all is no request; they are in `damaged/`."""
        return self._orphans.damaged

    def append(self, request: bytes) -> None:
        """Write one serialised ExportTraceServiceRequest to disk.

        Raises:
            SpoolFull: when the folder has reached its limit.
            OSError: when the disk does not take it. Neither while it may be held in memory.
        """
        with self._changed:
            try:
                self._write(request)
            except OSError as error:
                self.disk_error = error
                size = len(request) + sum(each.size for each in self._memories)
                if self._closed or size > self._memory:
                    raise
                self._held.append(request)
            finally:
                if not (self._waits or self._closed):
                    self._waits = True
                    self._changed.notify_all()
                if self._thread is None:
                    self._start()

    def _write(self, request: bytes) -> None:
        self._allowance.take(len(request))
        self._open = segment = self._open or Segment.create(self.directory)
        try:
            segment.append(request)
        finally:
            if self._closed:
                segment.release()
                self._open = None

    def flush(self, timeout: float, *, patient: bool = True) -> bool:
        """Wait until the collector has acknowledged all that can be read, adopted segments too.

        One that is not `patient` stops waiting as soon as the collector is seen to be away.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            if self._thread is None:
                return True  # a forked child that has appended nothing
            self._look, self._orphan_next = True, False
            self._changed.notify_all()
            while not self.empty:
                now = time.monotonic()
                until = deadline
                if self._sending is not None and not patient:
                    until = min(deadline, self._spoke + PATIENCE)
                if now >= until or (self.away and not patient):
                    break
                self._changed.wait(until - now)
            return self.empty

    def close(self, timeout: float = 2.0) -> None:
        """Flush, unless the collector is away, and leave the rest on disk for who comes next."""
        deadline = time.monotonic() + timeout
        self.flush(timeout, patient=False)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(0.1 if self.away else max(0.1, deadline - time.monotonic()))
        with self._changed:
            if self._open is not None:
                self._open.release()
            self._open = None

    def _run(self) -> None:
        while not self._closed:
            waiting = self._next()
            if waiting is not None:
                self._send(waiting)
        self._delivery.close()

    def _next(self) -> Waiting | None:
        """Wait for what there is to send: this process's own and what dead ones left, by turns."""
        with self._changed:
            until = self._look_again - time.monotonic()
            self._wait(lambda: self._waits or self._look, until)
            if self._waits:
                self._wait(lambda: self._look, self._gather)
            if self._closed:
                return None
            self._look = self._look or time.monotonic() >= self._look_again
            self._sending = self._in_turn()
            self._waits = bool(self._open or self._held)
            self._spoke = time.monotonic()
            self._changed.notify_all()
            return self._sending

    def _in_turn(self) -> Waiting | None:
        if self._look and (self._orphan_next or not self._waits):
            self._orphan_next = False
            if orphan := self._orphans.next():
                return orphan
            self._look, self._look_again = False, time.monotonic() + self._rescan
        self._orphan_next = True
        return self._own()

    def _wait(self, ready: Callable[[], bool], timeout: float) -> None:
        self._changed.wait_for(lambda: self._closed or ready(), timeout)

    def _pause(self, seconds: float) -> bool:
        with self._changed:
            return not self._changed.wait_for(lambda: self._closed, seconds)

    def _own(self) -> Waiting | None:
        if self._open is not None:
            mine, self._open = self._open, None
            return mine
        held, self._held = self._held, Memory()
        return held or None

    def _send(self, waiting: Waiting) -> None:
        try:
            if self._forwarder.forward(waiting):
                if isinstance(waiting, Segment) and waiting.damaged:
                    what = f"is damaged: {waiting.damaged} bytes in it are no span"
                    self._orphans.put_aside(waiting.path, f"{what}; the rest was sent")
                else:
                    waiting.remove()
        except Exception as error:  # a thread that died would leave all other segments unsent
            if isinstance(waiting, Segment):
                self._orphans.pass_over(waiting.path, error)
        finally:
            with self._changed:
                waiting.release()
                if isinstance(waiting, Memory):
                    self._held = waiting.followed_by(self._held)
                self._sending = None
                self._changed.notify_all()

    def note(self, receipt: Receipt) -> None:
        """Remember whether the collector is away, and why; say what a user has to mend."""
        if receipt.remedy:
            text = f"{receipt.reason}. Spans wait in {self.directory}. {receipt.remedy}"
            self._warn(text, "collector")
        with self._changed:
            self.away = receipt.fate is Fate.LATER
            self.trouble = receipt.reason if self.away else ""
            self._spoke = time.monotonic()
            self._changed.notify_all()

    def say_what_waits(self) -> None:
        """Warn, as the process ends, that the collector does not have all."""
        sending = isinstance(self._sending, Segment)
        trouble = self.trouble
        if sending and time.monotonic() - self._spoke > SILENCE:
            trouble = trouble or f"{self._delivery.url} does not answer"
        if trouble and (sending or self._open is not None):
            self._warn(
                f"Spans wait in {self.directory}: {trouble}. The next ltrain process "
                "that reaches the collector sends them.",
                "collector",
            )
