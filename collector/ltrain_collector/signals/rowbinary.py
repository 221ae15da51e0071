"""Encoders of ClickHouse's RowBinary: going through a frame or an Arrow table would double the
cost of the conversion."""

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct, pack

unsigned64 = Struct("<Q").pack
unsigned32 = Struct("<I").pack
signed32 = Struct("<i").pack
float64 = Struct("<d").pack

MAX_CACHED_LENGTH = 128
"""Length below which `short_string` caches a text; longer ones could fill the memory."""

MAX_INT64 = (1 << 63) - 1


def datetime64(nanoseconds: int) -> bytes:
    """Encode a DateTime64(9), which is signed; OTLP's time is not."""
    return unsigned64(nanoseconds & MAX_INT64)


def string(value: str) -> bytes:
    raw = value.encode()
    return varint(len(raw)) + raw


@lru_cache(maxsize=4096)
def cached_string(value: str) -> bytes:
    return string(value)


def short_string(value: str) -> bytes:
    """Encode a String, with a cache for repeated names and keys."""
    return cached_string(value) if len(value) < MAX_CACHED_LENGTH else string(value)


def varint(number: int) -> bytes:
    """Encode a length as unsigned LEB128."""
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    parts.append(number)
    return bytes(parts)


VARINTS = [varint(number) for number in range(1 << 14)]
"""Encoded lengths up to 16 KiB: every attribute needs two."""


def array(items: Sequence[bytes]) -> bytes:
    """Encode an Array of encoded items."""
    return varint(len(items)) + b"".join(items)


def counts(numbers: Sequence[int]) -> bytes:
    """Encode an Array(UInt64)."""
    return varint(len(numbers)) + pack(f"<{len(numbers)}Q", *numbers)


def floats(numbers: Sequence[float]) -> bytes:
    """Encode an Array(Float64)."""
    return varint(len(numbers)) + pack(f"<{len(numbers)}d", *numbers)
