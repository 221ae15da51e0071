"""Decompress request bodies up to a size limit."""

import zlib
from collections.abc import Callable
from typing import Protocol

from backports.zstd import DecompressionParameter, ZstdDecompressor, ZstdError

from ltrain_collector.errors import Malformed, TooLarge, Unsupported

WINDOW_LOG = 23
"""8 MiB, the largest window of zstd over HTTP (RFC 9659)."""


class Unpacker(Protocol):
    """Decompresses one body, with the interface of zstd's decompressor."""

    def decompress(self, body: bytes, limit: int, /) -> bytes:
        """Return at most `limit` decompressed bytes; a call with `b""` returns the next ones."""

    @property
    def eof(self) -> bool:
        """Whether the end of the compressed data was reached."""

    @property
    def unused_data(self) -> bytes:
        """The bytes after the end of the compressed data."""


class Zlib:
    """zlib's decompressor, for gzip (`wbits` 31) and deflate (15)."""

    def __init__(self, wbits: int) -> None:
        self._inner = zlib.decompressobj(wbits)

    def decompress(self, body: bytes, limit: int, /) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + body, limit)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data


def inflate(body: bytes, encoding: str, limit: int) -> bytes:
    """Decompress `body`; `encoding` is gzip, deflate, zstd, identity or ''.

    Raises:
        Malformed: the body does not have this encoding.
        TooLarge: it is longer than `limit` bytes once decompressed.
        Unsupported: the encoding is unknown.
    """
    if encoding in ("", "identity"):
        return body
    if encoding not in UNPACKERS:
        raise Unsupported(
            f"Content-Encoding '{encoding}' is not supported; use gzip, deflate, zstd or none."
        )
    unpacker = UNPACKERS[encoding]()
    try:
        plain = unpacker.decompress(body, limit + 1)
    except (zlib.error, ZstdError) as error:
        raise Malformed(f"The body is not valid {encoding}: {error}.") from error
    if len(plain) > limit:
        del plain  # the exception keeps this frame alive
        raise too_large(limit)
    if not unpacker.eof:
        raise Malformed(f"The {encoding} body is truncated.")
    if unpacker.unused_data:
        raise Malformed(f"The {encoding} body has bytes after its end.")
    return bytes(plain)


def too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body is larger than the limit of {limit >> 20} MiB. Send less at a time.")


def _zstd() -> ZstdDecompressor:
    return ZstdDecompressor(options={DecompressionParameter.window_log_max: WINDOW_LOG})


UNPACKERS: dict[str, Callable[[], Unpacker]] = {
    "gzip": lambda: Zlib(31),
    "deflate": lambda: Zlib(15),
    "zstd": _zstd,
}
