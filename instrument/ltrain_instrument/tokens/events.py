"""Server-sent events: a stream of bytes cut into whole events, none of them changed."""

import re
from dataclasses import dataclass
from typing import Self

DONE = b"[DONE]"
"""What the last event of an answer carries."""

_END = re.compile(rb"\n\n|\r\n\r\n|\r\r")
_DATA = re.compile(rb"^data: ?([^\r\n]*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Event:
    whole: bytes
    """As it came, with the empty line that ends it."""
    at: int
    data: bytes
    """What it carries from `at` on; empty for a comment, and for several lines of data, which no
    server sends here."""

    @classmethod
    def read(cls, whole: bytes) -> Self:
        """Find what an event carries."""
        lines = list(_DATA.finditer(whole))
        if len(lines) != 1:
            return cls(whole, 0, b"")
        return cls(whole, lines[0].start(1), lines[0][1])

    def carrying(self, data: bytes) -> bytes:
        """Give the event's bytes with other data."""
        return self.whole[: self.at] + data + self.whole[self.at + len(self.data) :]


class Events:
    """Cuts what it is fed; `rest` is the beginning of an event whose end has not come."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, piece: bytes) -> list[Event]:
        """Give the events that end in `piece`."""
        start, searched = 0, max(0, len(self.rest) - 3)
        text = self.rest + piece
        found: list[Event] = []
        while end := _END.search(text, max(start, searched)):
            found.append(Event.read(text[start : end.end()]))
            start = end.end()
        self.rest = text[start:]
        return found
