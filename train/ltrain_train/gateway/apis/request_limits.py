"""Limits of a request by its bytes and numbers, checked before anything else reads the request.

One request that has few bytes and many empty elements would take seconds of the gateway's CPU, in
which other calls wait.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Self

from ltrain_instrument.settings import REQUEST_ITEMS, REQUEST_LIMIT
from ltrain_train.gateway.errors import Refused

VALUES_OF_ITEM = 32
"""JSON values that a request may have for each of its items. Most messages have two, a schema has
dozens, and a prompt of token ids has as many as ids."""
SCANNED_BYTES = 256 << 10
"""Bytes that are scanned at once, so that other threads run between two scans."""
ITEM_FIELDS = (
    *("messages", "input", "system", "tools", "stop", "stop_sequences", "include"),
    *("contents", "systemInstruction", "generateContentRequest", "generationConfig"),
)
"""Fields of the APIs whose lists have items."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The largest request that the gateway reads."""

    size: int = int(REQUEST_LIMIT.default) << 20
    """Bytes."""
    items: int = int(REQUEST_ITEMS.default)
    """Messages, parts, tools and tool calls together."""

    @classmethod
    def from_settings(cls) -> Self:
        """Return the limits of the environment.

        Raises:
            BadSetting: when a limit is not a positive integer.
        """
        return cls(REQUEST_LIMIT.read() << 20, REQUEST_ITEMS.read())

    @property
    def values(self) -> int:
        """Maximum JSON values of a request."""
        return VALUES_OF_ITEM * self.items

    def require_size(self, size: int) -> None:
        """Check the bytes of a request.

        Raises:
            Refused: 413.
        """
        if size > self.size:
            raise _too_large(
                f"A request has at most {self.size >> 20} MiB. Send less, or set "
                f"{REQUEST_LIMIT.name} of the gateway."
            )

    def require_values(self, raw: bytes) -> None:
        """Check the JSON values of a request before they are parsed.

        Raises:
            Refused: 413.
        """
        if len(raw) <= self.values:  # each has a byte at least
            return
        if _starts(raw) > self.values and _count_values(raw) > self.values:
            raise _too_large(
                f"A request has at most {self.values:,} JSON values. Send fewer, or set "
                f"{REQUEST_ITEMS.name} of the gateway: each item counts {VALUES_OF_ITEM} values."
            )

    def require_items(self, body: dict[str, Any]) -> None:
        """Check the number of messages, parts, tools, tool calls and fields of a request.

        Raises:
            Refused: 413.
        """
        values = [body[name] for name in ITEM_FIELDS if isinstance(body.get(name), list | dict)]
        lists = [value if isinstance(value, list) else [value] for value in values]
        if len(body) + sum(map(len, _nested(lists))) > self.items:
            raise _too_large(
                f"A request has at most {self.items:,} messages, parts, tools and tool calls "
                f"together. Send fewer, or set {REQUEST_ITEMS.name} of the gateway."
            )


def _nested(lists: list[list[Any]]) -> Iterator[list[Any]]:
    """Yield lists, and those in their elements at every depth, also in objects of the elements."""
    while lists:
        yield from lists
        elements = (each for inner in lists for each in inner if isinstance(each, dict))
        values = [value for each in elements for value in each.values()]
        objects = (value.values() for value in values if isinstance(value, dict))
        values += [value for each in objects for value in each]
        lists = [value for value in values if isinstance(value, list)]


def _starts(json: bytes) -> int:
    """Return the number of characters that may begin a value: at least that of the values."""
    return json.count(b",") + json.count(b"[") + json.count(b"{")


def _count_values(raw: bytes) -> int:
    """Return about how many values JSON has: its characters outside of texts that begin one."""
    count, inside, rest = 0, False, b""
    for start in range(0, len(raw), SCANNED_BYTES):
        part = rest + raw[start : start + SCANNED_BYTES]
        rest = b"\\" if _ends_in_escape(part) else b""
        plain = part.removesuffix(rest).replace(b"\\\\", b"").replace(b'\\"', b"")
        texts = plain.split(b'"')
        count += _starts(b"".join(texts[1 if inside else 0 :: 2]))
        inside ^= len(texts) % 2 == 0
    return count


def _ends_in_escape(part: bytes) -> bool:
    return (len(part) - len(part.rstrip(b"\\"))) % 2 == 1


def _too_large(sentence: str) -> Refused:
    return Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, sentence)
