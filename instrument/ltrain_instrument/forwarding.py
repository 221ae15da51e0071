"""Posts what a spool holds until the collector has spoken, and keeps what it refuses."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from ltrain_instrument.aside import Aside
from ltrain_instrument.delivery import Delivery, Fate, Receipt
from ltrain_instrument.frames import Record
from ltrain_instrument.once import Once

LIMIT = 8 << 20
"""Bytes of one merged request: half of the 16 MiB that collectors take."""
LONGEST_PAUSE = 1.0
"""Seconds between two tries while the collector is away."""
LONGEST_PAUSE_REMEDY = 10.0
"""The same while it answers, but with what a user has to mend."""


class Waiting(Protocol):
    """Requests that wait: a segment, or memory."""

    @property
    def damaged(self) -> int:
        """Bytes that hold no request."""

    def batches(self, limit: int) -> Iterator[list[Record]]:
        """Yield what waits."""

    def strike(self, records: Sequence[Record]) -> None:
        """Mark records as sent."""

    def remove(self) -> None:
        """Forget everything: it was sent."""

    def release(self) -> None:
        """Leave what was not sent to others."""


class Forwarder:
    """Sends in one thread; `note` learns each receipt, `pause` sleeps and returns False to end."""

    def __init__(
        self,
        delivery: Delivery,
        refused: Aside,
        warn: Once,
        *,
        note: Callable[[Receipt], None],
        pause: Callable[[float], bool],
    ) -> None:
        self._delivery = delivery
        self._refused = refused
        self._warn = warn
        self._note = note
        self._pause = pause
        self.refused = 0
        """Requests that the collector will never take, kept in `refused/`."""
        self.dropped = 0
        """Those of them that `refused/` did not take."""

    def forward(self, waiting: Waiting) -> bool:
        """Send all that waits; False when a pause ended it. Records that were sent are marked."""
        batches = waiting.batches(LIMIT)
        batch = next(batches, None)
        while batch is not None:
            following = next(batches, None)
            # A file that is removed next needs no marks
            last = following is None and not waiting.damaged
            if not self._deliver(waiting, batch, mark=not last):
                return False
            batch = following
        return True

    def _deliver(self, waiting: Waiting, records: Sequence[Record], *, mark: bool) -> bool:
        # Serialised messages concatenate: the sum of requests is the request of all their spans
        receipt = self._answer(b"".join(record.request for record in records))
        if receipt.fate is Fate.LATER:
            return False
        if receipt.fate is Fate.REFUSED and len(records) > 1:
            half = len(records) // 2  # find what is refused, so that the others pass
            return all(
                self._deliver(waiting, r, mark=True) for r in (records[:half], records[half:])
            )
        if receipt.fate is Fate.REFUSED:
            self._keep(records[0], receipt)
        elif receipt.reason:
            self._warn(f"Spans refused: {receipt.reason}.", "collector")
        if mark:
            waiting.strike(records)
        return True

    def _answer(self, request: bytes) -> Receipt:
        """Post until the collector has taken or refused it, or a pause ended it."""
        pause = 0.05
        while True:
            receipt = self._delivery.post(request)
            self._note(receipt)
            if receipt.fate is not Fate.LATER or not self._pause(pause):
                return receipt
            longest = LONGEST_PAUSE_REMEDY if receipt.remedy else LONGEST_PAUSE
            pause = min(2 * pause, longest)

    def _keep(self, record: Record, receipt: Receipt) -> None:
        self.refused += 1
        place = self._refused.directory
        try:
            self._refused.keep(record.request)
        except OSError as error:  # no room, or something else has its name
            self.dropped += 1
            self._warn(f"Spans refused, and dropped: {receipt.reason}. {error}", "dropped")
            return
        self._warn(
            f"Spans refused: {receipt.reason}. They are kept in {place}; "
            f"move the files to {place.parent} to send them again.",
            "collector",
        )
