"""Posts the requests of a spool until the collector has answered, and stores refused ones."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from ltrain_instrument.delivery.frames import Record
from ltrain_instrument.delivery.otlp_client import (
    Client,
    Destination,
    SendResult,
    SendStatus,
    WarnOnce,
)
from ltrain_instrument.delivery.segment import Quarantine

MAX_BATCH_BYTES = 8 << 20
"""Bytes of one merged request: half of the 16 MiB that collectors accept."""
MAX_PAUSE_FOR_REMEDY = 10.0
"""Maximum seconds between two attempts while the collector answers with an error that a user must
fix."""
MAX_RETRY_AFTER = 60.0
"""Maximum seconds of a collector's `Retry-After`; the budget of a minute is full again by then."""


class PendingRequests(Protocol):
    """Requests that are not sent yet: a segment or a memory buffer."""

    @property
    def damaged(self) -> int:
        """Number of bytes that hold no request."""

    def batches(self, limit: int) -> Iterator[list[Record]]:
        """Yield the unsent requests in lists of at most `limit` bytes."""

    def mark_sent(self, records: Sequence[Record]) -> None:
        """Mark records as sent."""

    def remove(self) -> None:
        """Discard everything, because it was sent."""

    def release(self) -> None:
        """Leave unsent requests to other processes."""


class Forwarder:
    """Sends in one thread.

    `record_result` receives each result; `pause` sleeps and returns False to stop.
    """

    def __init__(
        self,
        sender: Client,
        refused: Quarantine,
        warn: WarnOnce,
        destination: Destination,
        *,
        record_result: Callable[[SendResult], None],
        pause: Callable[[float], bool],
    ) -> None:
        self._sender = sender
        self._refused_folder = refused
        self._warn = warn
        self._max_pause = destination.max_pause
        self._records = destination.records.capitalize()
        self._record_result = record_result
        self._pause = pause
        self.refused = 0
        """Number of requests that the collector will never accept; they are in `refused/`."""
        self.dropped = 0
        """Number of refused requests that could not be written to `refused/`."""

    def forward(self, pending: PendingRequests) -> bool:
        """Send all pending requests and mark them; return False if a pause stopped it."""
        batches = pending.batches(MAX_BATCH_BYTES)
        batch = next(batches, None)
        while batch is not None:
            following = next(batches, None)
            # The file is removed after the last batch, so its records need no marks
            last = following is None and not pending.damaged
            if not self._send_batch(pending, batch, mark=not last):
                return False
            batch = following
        return True

    def _send_batch(
        self, pending: PendingRequests, records: Sequence[Record], *, mark: bool
    ) -> bool:
        # Concatenated protobuf messages are one message with the spans of all
        result = self._post_until_answered(b"".join(record.request for record in records))
        if result.status is SendStatus.RETRY:
            return False
        if result.status is SendStatus.REFUSED and len(records) > 1:
            half = len(records) // 2  # find the refused record, so that the others are accepted
            return all(
                self._send_batch(pending, r, mark=True) for r in (records[:half], records[half:])
            )
        if result.status is SendStatus.REFUSED:
            self._store_refused(records[0], result)
        elif result.reason:
            self._warn(f"{self._records} were refused: {result.reason}.", "collector")
        if mark:
            pending.mark_sent(records)
        return True

    def _post_until_answered(self, request: bytes) -> SendResult:
        """Post until the collector has accepted or refused the request, or a pause stops it."""
        pause = 0.05
        while True:
            result = self._sender.post(request)
            self._record_result(result)
            wait = max(pause, min(result.retry_after, MAX_RETRY_AFTER))
            if result.status is not SendStatus.RETRY or not self._pause(wait):
                return result
            pause = min(2 * pause, MAX_PAUSE_FOR_REMEDY if result.remedy else self._max_pause)

    def _store_refused(self, record: Record, result: SendResult) -> None:
        self.refused += 1
        folder = self._refused_folder.directory
        try:
            self._refused_folder.write_request(record.request)
        except OSError as error:  # the folder is full, or a file has its name
            self.dropped += 1
            self._warn(
                f"{self._records} were refused and dropped: {result.reason}. {error}", "dropped"
            )
            return
        self._warn(
            f"{self._records} were refused: {result.reason}. They are in {folder}; "
            f"move the files to {folder.parent} to send them again.",
            "collector",
        )
