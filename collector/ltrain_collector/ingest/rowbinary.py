"""ClickHouse's RowBinary, written by hand: a frame or an Arrow table in between costs as much again
as the whole conversion."""

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct, pack

unsigned64 = Struct("<Q").pack
unsigned32 = Struct("<I").pack
signed32 = Struct("<i").pack
float64 = Struct("<d").pack

FEW = 128
"""Characters of a text that `short` may keep; a client could fill memory with longer ones."""

LATEST = (1 << 63) - 1


def time(nanoseconds: int) -> bytes:
    """A DateTime64(9), which has a sign where OTLP's time has none."""
    return unsigned64(nanoseconds & LATEST)


def string(value: str) -> bytes:
    raw = value.encode()
    return length(len(raw)) + raw


@lru_cache(maxsize=4096)
def kept(value: str) -> bytes:
    return string(value)


def short(value: str) -> bytes:
    """`string` for what repeats: names and keys."""
    return kept(value) if len(value) < FEW else string(value)


def length(number: int) -> bytes:
    """LEB128, as RowBinary counts."""
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    parts.append(number)
    return bytes(parts)


LENGTHS = [length(number) for number in range(1 << 14)]
"""Most lengths, ready made: an attribute costs two."""


def array(items: Sequence[bytes]) -> bytes:
    """An Array of items that are written already."""
    return length(len(items)) + b"".join(items)


def counts(numbers: Sequence[int]) -> bytes:
    """An Array(UInt64)."""
    return length(len(numbers)) + pack(f"<{len(numbers)}Q", *numbers)


def floats(numbers: Sequence[float]) -> bytes:
    """An Array(Float64)."""
    return length(len(numbers)) + pack(f"<{len(numbers)}d", *numbers)
