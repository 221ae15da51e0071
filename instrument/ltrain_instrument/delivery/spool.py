"""A directory of OTLP requests that wait for the collector.

Rules: a request is on disk from the moment `append` returns until a collector has acknowledged it.
An unreachable collector costs the caller nothing. Requests of a dead process are sent by any other
spool on the directory. Requests that the collector refuses are moved to `refused/`, damaged files
to `damaged/`, and both are counted. No folder exceeds LTRAIN_SPOOL_LIMIT by more than a few
requests; at the limit, new requests are dropped.
"""

import contextlib
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

from ltrain_instrument import settings
from ltrain_instrument.delivery.disk_quota import DiskQuota
from ltrain_instrument.delivery.forwarding import Forwarder, PendingRequests
from ltrain_instrument.delivery.frames import Record, batch_records
from ltrain_instrument.delivery.orphans import OrphanSegments
from ltrain_instrument.delivery.otlp_client import (
    COLLECTOR,
    Authorization,
    Destination,
    SendResult,
    SendStatus,
    WarnOnce,
)
from ltrain_instrument.delivery.segment import SUFFIX, Quarantine, Segment


class MemoryBuffer:
    """Requests that could not be written to disk, with a segment's methods; not thread-safe.

    They are lost unless they are sent before exit.
    """

    __slots__ = ("_numbers", "_requests", "damaged", "size")

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._requests: dict[int, bytes] = {}
        self.damaged = 0
        self.size = 0
        """Total bytes of the requests."""

    def __len__(self) -> int:
        return len(self._requests)

    def append(self, request: bytes) -> None:
        """Add one request."""
        self._requests[next(self._numbers)] = request
        self.size += len(request)

    def batches(self, limit: int) -> Iterator[list[Record]]:
        """Yield the requests in order, in lists of at most `limit` bytes or of one request."""
        return batch_records([Record(*item) for item in self._requests.items()], limit)

    def mark_sent(self, records: Sequence[Record]) -> None:
        """Remove requests that were sent."""
        for record in records:
            self.size -= len(self._requests.pop(record.offset))

    def remove(self) -> None:
        """Remove all requests, which were sent."""
        self._requests.clear()
        self.size = 0

    def release(self) -> None:
        """Do nothing: requests that were not sent stay in memory."""

    def extend(self, later: Self) -> Self:
        """Append the requests of a later buffer and return this one."""
        for request in later._requests.values():
            self.append(request)
        return self


BATCH_DELAY = 0.1
"""Seconds between the first append and the request, in which more spans join it."""
RESCAN_INTERVAL = 1.0
"""Seconds between two searches for segments whose owner died."""
UNRESPONSIVE_SECONDS = 2.0
"""Seconds without an answer after which a collector counts as unreachable."""
NO_ANSWER_SECONDS = 1.0
"""Seconds without an answer after which an exiting process warns; its flush waits for 1.5."""


class Spool:
    """Accepts serialised OTLP requests of one signal and sends them from a thread of its own."""

    def __init__(
        self,
        directory: Path,
        endpoint: str | None = None,
        *,
        limit: int | None = None,
        batch_delay: float = BATCH_DELAY,
        rescan_interval: float = RESCAN_INTERVAL,
        memory_limit: int = 0,
        authorization: Authorization | None = None,
        destination: Destination = COLLECTOR,
    ) -> None:
        """Open the folder.

        `limit` is in MiB, by default LTRAIN_SPOOL_LIMIT; `memory_limit` is how many bytes are held
        in memory if the disk fails, until the collector has them. All requests in the folder are
        sent with `authorization`, whichever process wrote them.
        """
        self.directory, self._memory_limit = directory, memory_limit
        limit = (settings.SPOOL_LIMIT.read() if limit is None else limit) << 20
        self._batch_delay, self._rescan_interval = batch_delay, rescan_interval
        self._quota = DiskQuota(directory, limit)
        self._warn = WarnOnce()
        damaged = Quarantine(directory / "damaged", limit)
        self._orphans = OrphanSegments(directory, damaged, self._warn)
        self._destination = destination
        self._sender = destination.open(endpoint, authorization)
        self._forwarder = Forwarder(
            self._sender,
            Quarantine(directory / "refused", limit),
            self._warn,
            destination,
            record_result=self.record_result,
            pause=self._pause,
        )
        self.disk_error: OSError | None = None
        """Why the disk refused the last request that it refused."""
        self._open: Segment | None = None
        self._sending: PendingRequests | None = None
        self._reset()
        self._start()
        reset = weakref.WeakMethod(self._reset_after_fork)
        os.register_at_fork(after_in_child=lambda: (bound := reset()) and bound())

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._must_search = True
        """Whether to search for orphans before the spool counts as empty."""
        self._next_search = 0.0
        """When to search for orphans next, however busy this process is."""
        self._orphan_first = False
        """Whether an orphan is sent before the requests of this process."""
        self._closed = False
        self.last_result = SendResult(SendStatus.ACCEPTED)
        """The result of the last request."""
        self._last_answer = time.monotonic()
        """When the collector last answered, or when the first request was sent."""
        self._memory_buffer = MemoryBuffer()
        self._has_unsent = False
        """Whether something was appended that is not being sent yet."""
        self._taken = self._sent = 0
        """Number of batches of this process's requests that the thread has taken and has sent."""
        self._thread: threading.Thread | None = None

    def _reset_after_fork(self) -> None:
        """Leave segments and thread to the parent; the child starts its own on append."""
        for pending in (self._open, self._sending):
            if isinstance(pending, Segment):
                pending.abandon()
        self._open = self._sending = None
        self._reset()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="ltrain-spool", daemon=True)
        # Python 3.12 starts no thread at interpreter exit; another spool then sends the bytes
        with contextlib.suppress(RuntimeError):
            self._thread.start()

    @property
    def collector_away(self) -> bool:
        """Whether the collector did not accept the last request."""
        return self.last_result.status is SendStatus.RETRY

    @property
    def held_in_memory(self) -> int:
        """Number of requests that are in memory only."""
        return sum(map(len, self._memory_buffers))

    @property
    def _memory_buffers(self) -> list[MemoryBuffer]:
        buffers = (self._memory_buffer, self._sending)
        return [each for each in buffers if isinstance(each, MemoryBuffer)]

    @property
    def refused(self) -> int:
        """Number of requests that the collector will never accept."""
        return self._forwarder.refused

    @property
    def dropped(self) -> int:
        """Number of refused requests that could not be written to `refused/`."""
        return self._forwarder.dropped

    @property
    def damaged(self) -> int:
        """Number of files with damage; they are in `damaged/`."""
        return self._orphans.damaged

    def append(self, request: bytes) -> None:
        """Write one serialised request to disk, else hold it in memory.

        Raises:
            SpoolFull: when the folder has reached its limit, and memory too.
            OSError: when the disk refuses it and memory has reached its limit.
        """
        with self._changed:
            try:
                self._write(request)
            except OSError as error:
                self.disk_error = error
                size = len(request) + sum(each.size for each in self._memory_buffers)
                if self._closed or size > self._memory_limit:
                    raise
                self._memory_buffer.append(request)
            finally:
                if not (self._has_unsent or self._closed):
                    self._has_unsent = True
                    self._changed.notify_all()
                if self._thread is None:
                    self._start()

    def _write(self, request: bytes) -> None:
        self._quota.reserve(len(request))
        self._open = segment = self._open or Segment.create(self.directory)
        try:
            segment.append(request)
        finally:
            if self._closed:
                segment.release()
                self._open = None

    def flush(self, timeout: float, *, wait_if_away: bool = True) -> bool:
        """Wait until the collector has acknowledged all earlier requests, adopted segments too.

        Requests that are appended meanwhile do not count. Without `wait_if_away`, stop
        waiting as soon as the collector is unreachable.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            if self._thread is None:
                return True  # a forked child that has appended nothing
            self._must_search, self._orphan_first = True, False
            self._changed.notify_all()
            last_batch = self._taken + self._has_unsent
            while not self._has_sent(last_batch):
                now, wake_at = time.monotonic(), deadline
                if self._sending is not None and not wait_if_away:
                    wake_at = min(deadline, self._last_answer + UNRESPONSIVE_SECONDS)
                if now >= wake_at or (self.collector_away and not wait_if_away):
                    break
                self._changed.wait(wake_at - now)
            return self._has_sent(last_batch)

    def _has_sent(self, last_batch: int) -> bool:
        """Return whether this process's batches up to one are sent, and no orphan is left."""
        return self._sent >= last_batch and not self._must_search

    def close(self, timeout: float = 2.0) -> None:
        """Flush, unless the collector is unreachable; the next spool sends what stays on disk."""
        deadline = time.monotonic() + timeout
        self.flush(timeout, wait_if_away=False)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(0.1 if self.collector_away else max(0.1, deadline - time.monotonic()))
        with self._changed:
            if self._open is not None:
                self._open.release()
            self._open = None

    def _run(self) -> None:
        while not self._closed:
            pending = self._next_to_send()
            if pending is not None:
                self._send(pending)
        self._sender.close()

    def _next_to_send(self) -> PendingRequests | None:
        """Wait for something to send: alternately this process's own requests and orphans."""
        with self._changed:
            delay = self._next_search - time.monotonic()
            self._wait(lambda: self._has_unsent or self._must_search, delay)
            if self._has_unsent:
                self._wait(lambda: self._must_search, self._batch_delay)
            if self._closed:
                return None
            self._must_search = self._must_search or time.monotonic() >= self._next_search
            self._sending = self._choose_next()
            self._has_unsent = bool(self._open or self._memory_buffer)
            self._last_answer = time.monotonic()
            self._changed.notify_all()
            return self._sending

    def _choose_next(self) -> PendingRequests | None:
        if self._must_search and (self._orphan_first or not self._has_unsent):
            self._orphan_first = False
            if orphan := self._orphans.adopt_next():
                return orphan
            self._must_search = False
            self._next_search = time.monotonic() + self._rescan_interval
        self._orphan_first = True
        return self._take_own()

    def _wait(self, ready: Callable[[], bool], timeout: float) -> None:
        self._changed.wait_for(lambda: self._closed or ready(), timeout)

    def _pause(self, seconds: float) -> bool:
        with self._changed:
            return not self._changed.wait_for(lambda: self._closed, seconds)

    def _take_own(self) -> PendingRequests | None:
        self._taken += bool(self._open or self._memory_buffer)
        if self._open is not None:
            segment, self._open = self._open, None
            return segment
        buffer, self._memory_buffer = self._memory_buffer, MemoryBuffer()
        return buffer or None

    def _send(self, pending: PendingRequests) -> None:
        try:
            if self._forwarder.forward(pending):
                if isinstance(pending, Segment) and pending.damaged:
                    damage = f"is damaged: {pending.damaged} bytes in it are not spans"
                    self._orphans.quarantine(pending.path, f"{damage}; the rest was sent")
                else:
                    pending.remove()
        except Exception as error:  # the thread must go on to send the other segments
            if isinstance(pending, Segment):
                self._orphans.skip(pending.path, error)
        finally:
            with self._changed:
                pending.release()
                if isinstance(pending, MemoryBuffer):
                    self._memory_buffer = pending.extend(self._memory_buffer)
                self._sending, self._sent = None, self._taken
                self._changed.notify_all()

    def record_result(self, result: SendResult) -> None:
        """Record whether the collector is reachable, and why not; warn of what a user must fix."""
        if self._destination.observe:
            self._destination.observe(result)
        elif result.remedy:
            text = f"{result.reason}. Spans wait in {self.directory}. {result.remedy}"
            self._warn(text, "collector")
        with self._changed:
            self.last_result = result
            self._last_answer = time.monotonic()
            self._changed.notify_all()

    def warn_of_waiting_spans(self) -> None:
        """Warn, at process exit, that the collector does not have all spans."""
        sending = isinstance(self._sending, Segment)
        failure = self.last_result.reason if self.collector_away else ""
        if sending and time.monotonic() - self._last_answer > NO_ANSWER_SECONDS:
            failure = failure or f"{self._sender.url} does not answer"
        if failure and (sending or self._open is not None):
            self._warn(
                f"Spans wait in {self.directory}: {failure}. The next ltrain process "
                "that reaches the collector sends them.",
                "collector",
            )


def send_leftover_spans(
    directory: Path,
    endpoint: str | None = None,
    *,
    timeout: float,
    authorization: Authorization | None = None,
) -> SendResult:
    """Send the spans that dead processes left in a folder; return `ACCEPTED` if all are sent.

    Spans that the collector does not accept within `timeout` seconds stay on disk.
    """
    if not any(directory.glob(f"*{SUFFIX}")):
        return SendResult(SendStatus.ACCEPTED)
    spool = Spool(directory, endpoint, authorization=authorization)
    try:
        if not spool.flush(timeout, wait_if_away=False):
            too_slow = SendResult(SendStatus.RETRY, f"{timeout:g} s are too short for all of it")
            return spool.last_result if spool.collector_away else too_slow
        # A spool skips files that it cannot read or move
        is_left = any(directory.glob(f"*{SUFFIX}"))
        return SendResult(SendStatus.REFUSED if is_left else SendStatus.ACCEPTED)
    finally:
        spool.close(0)
