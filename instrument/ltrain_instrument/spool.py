"""A directory of OTLP requests on their way to the collector.

Rules: what `append` has returned for is on disk until a collector has acknowledged it. A collector
that is away costs the caller nothing. What a dead process left is forwarded by any other spool on
the directory. A request that the collector refuses is kept in `refused/` and counted. Neither
folder outgrows LTRAIN_SPOOL_LIMIT by more than a few requests; the oldest ones stay.
"""

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

from ltrain_instrument import settings
from ltrain_instrument.allowance import Allowance
from ltrain_instrument.delivery import Authorization, Delivery, Fate, Receipt, traces_url
from ltrain_instrument.errors import SpoolFull
from ltrain_instrument.segment import SUFFIX, Segment

LIMIT = 8 << 20
"""Bytes of one merged request: half of the 16 MiB that collectors take."""
GATHER = 0.01
"""Seconds between the first append and the request, in which others join it."""
RESCAN = 1.0
"""Seconds between two looks for segments whose owner died."""
LONGEST_PAUSE = 1.0
"""Seconds between two tries while the collector is away."""
LONGEST_PAUSE_REMEDY = 10.0
"""The same while it answers, but with what a user has to mend."""

_logger = logging.getLogger("ltrain.spool")


class Spool:
    """Takes serialised OTLP trace requests and forwards them from a thread of its own."""

    def __init__(
        self,
        directory: Path,
        endpoint: str | None = None,
        *,
        limit: int | None = None,
        authorization: Authorization | None = None,
    ) -> None:
        """Open the folder; `limit` is in MiB, that of LTRAIN_SPOOL_LIMIT if not given.

        All that lies in the folder is sent with `authorization`, whoever put it there.
        """
        self._directory = directory
        limit = (settings.SPOOL_LIMIT.read() if limit is None else limit) << 20
        self._allowance = Allowance(directory, limit)
        self._refusals = Allowance(directory / "refused", limit)
        self._delivery = Delivery(traces_url(endpoint), timeout=30.0, authorization=authorization)
        self.refused = 0
        """Requests that the collector will never take, moved to `refused/`."""
        self.dropped = 0
        """Those of them that `refused/` had no room for."""
        self.trouble = ""
        """Why the last request did not pass; '' when it did."""
        self._said: set[str] = set()
        self._open: Segment | None = None
        self._sending: Segment | None = None
        self._reset()
        self._start()
        fork = weakref.WeakMethod(self._forked)
        os.register_at_fork(after_in_child=lambda: (forked := fork()) and forked())

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._look = True
        """Whether to look for orphans before the spool counts as empty."""
        self._closed = False
        self.away = False
        """Whether the collector did not answer the last try, the caller's own included."""
        self._thread: threading.Thread | None = None

    def _forked(self) -> None:
        """Leave segments and thread to the parent; the child starts its own when it appends."""
        for segment in (self._open, self._sending):
            if segment is not None:
                segment.abandon()
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
        return self._open is None and self._sending is None and not self._look

    def append(self, request: bytes) -> None:
        """Write one serialised ExportTraceServiceRequest to disk.

        Raises:
            SpoolFull: when the folder has reached its limit.
            OSError: when the disk does not take it.
        """
        with self._changed:
            self._allowance.take(len(request))
            first = self._open is None
            segment = self._open or Segment.create(self._directory)
            self._open = segment
            segment.append(request)
            if self._closed:
                segment.release()
                self._open = None
            elif first:
                self._changed.notify_all()
                if self._thread is None:
                    self._start()

    def flush(self, timeout: float, *, patient: bool = True) -> bool:
        """Wait until the collector has acknowledged everything, adopted segments included.

        One that is not `patient` stops waiting as soon as the collector is seen to be away.
        """
        with self._changed:
            if self._thread is None:
                return True  # a forked child that has appended nothing
            self._look = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.empty or (self.away and not patient), timeout)
            return self.empty

    def close(self, timeout: float = 2.0) -> None:
        """Flush, unless the collector is away, and leave the rest on disk for who comes next."""
        deadline = time.monotonic() + timeout
        self.flush(timeout, patient=False)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(0.1 if self.away else max(0.1, deadline - time.monotonic()))
        with self._changed:
            if self._open is not None:
                self._open.release()
            self._open = None

    def _run(self) -> None:
        while not self._closed:
            try:
                segment = self._next()
                if segment is not None:
                    self._send(segment)
            except OSError as error:  # the disk: say it, and go on with what can be read
                _logger.warning("ltrain: spool %s: %s", self._directory, error)
                time.sleep(LONGEST_PAUSE)
        self._delivery.close()

    def _next(self) -> Segment | None:
        """Wait for a segment to send: this process's own, else one whose owner died."""
        with self._changed:
            self._changed.wait_for(lambda: self._open or self._look or self._closed, RESCAN)
            gather = self._open is not None and not self._look
        if gather:
            time.sleep(GATHER)
        with self._changed:
            if self._closed:
                return None
            self._sending, self._open = self._open or self._orphan(), None
            self._look = self._look and self._sending is not None
            self._changed.notify_all()
            return self._sending

    def _orphan(self) -> Segment | None:
        # A folder that cannot be read holds nothing; `append` says what is wrong with it
        with contextlib.suppress(OSError), os.scandir(self._directory) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX) and (found := Segment.adopt(Path(entry.path))):
                    return found
        return None

    def _send(self, segment: Segment) -> None:
        try:
            if all(self._deliver(batch) for batch in segment.batches(LIMIT)):
                segment.remove()
        finally:
            segment.release()
            with self._changed:
                self._sending = None
                self._changed.notify_all()

    def _deliver(self, requests: Sequence[bytes]) -> bool:
        """Post until the collector has spoken; False when the spool was closed before it did."""
        pause = 0.05
        # Serialised messages concatenate: the sum of requests is the request of all their spans
        while (receipt := self._delivery.post(b"".join(requests))).fate is Fate.LATER:
            longest = LONGEST_PAUSE_REMEDY if receipt.remedy else LONGEST_PAUSE
            with self._changed:
                self.note(receipt)
                self._changed.notify_all()
                if self._changed.wait_for(lambda: self._closed, pause):
                    return False
            pause = min(2 * pause, longest)
        self.note(receipt)
        if receipt.fate is Fate.REFUSED:
            return self._split(requests, receipt)
        if receipt.reason:
            self._warn(f"Spans refused: {receipt.reason}.")
        return True

    def _split(self, requests: Sequence[bytes], receipt: Receipt) -> bool:
        """Find the refused requests among `requests`, so that the others pass."""
        if len(requests) > 1:
            half = len(requests) // 2
            return self._deliver(requests[:half]) and self._deliver(requests[half:])
        self.refused += 1
        try:
            self._refusals.take(len(requests[0]))
        except SpoolFull as error:
            self.dropped += 1
            self._warn(f"Spans refused, and dropped: {receipt.reason}. {error}", "dropped")
            return True
        kept = Segment.create(self._directory / "refused")
        kept.append(requests[0])
        kept.release()
        self._warn(
            f"Spans refused: {receipt.reason}. They are kept in {kept.path.parent}; "
            f"move the files to {self._directory} to send them again."
        )
        return True

    def note(self, receipt: Receipt) -> None:
        """Remember whether the collector is away, and why; say what a user has to mend."""
        self.away = receipt.fate is Fate.LATER
        self.trouble = receipt.reason if self.away else ""
        if receipt.remedy:
            self._warn(f"{receipt.reason}. Spans wait in {self._directory}. {receipt.remedy}")

    def say_what_waits(self) -> None:
        """Warn, as the process ends, that the collector does not have all."""
        if not self.empty and self.trouble:
            self._warn(
                f"Spans wait in {self._directory}: {self.trouble}. The next ltrain process "
                "that reaches the collector sends them."
            )

    def _warn(self, text: str, kind: str = "collector") -> None:
        """Log one warning of a kind, and no second."""
        if kind not in self._said:
            _logger.warning("ltrain: %s", text)
        self._said.add(kind)
