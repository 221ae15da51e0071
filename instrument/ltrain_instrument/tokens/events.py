"""Server-sent events: splits a byte stream into complete events without changing them."""

import re
from dataclasses import dataclass
from typing import Self

DONE = b"[DONE]"
"""Data of the last event of a response."""

_END = re.compile(rb"\n\n|\r\n\r\n|\r\r")
_DATA = re.compile(rb"^data: ?([^\r\n]*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Event:
    raw: bytes
    """The bytes of the event, with the empty line that ends it."""
    data_start: int
    data: bytes
    """The data at offset `data_start`; empty for a comment, and for several lines of data, which no
    server sends here."""

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Find the data of an event."""
        lines = list(_DATA.finditer(raw))
        if len(lines) != 1:
            return cls(raw, 0, b"")
        return cls(raw, lines[0].start(1), lines[0][1])

    def with_data(self, data: bytes) -> bytes:
        """Return the event's bytes with other data."""
        return self.raw[: self.data_start] + data + self.raw[self.data_start + len(self.data) :]


class EventSplitter:
    """Splits the bytes that it is fed; `remainder` is the start of an incomplete event."""

    def __init__(self) -> None:
        self.remainder = b""

    def feed(self, piece: bytes) -> list[Event]:
        """Return the events that end in `piece`."""
        start, searched = 0, max(0, len(self.remainder) - 3)
        buffered = self.remainder + piece
        events: list[Event] = []
        while end := _END.search(buffered, max(start, searched)):
            events.append(Event.parse(buffered[start : end.end()]))
            start = end.end()
        self.remainder = buffered[start:]
        return events
