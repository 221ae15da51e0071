"""Decompressors of request bodies, with the interface of zstd's."""

import zlib
from typing import Protocol


class Unpacker(Protocol):
    """Decompresses one body."""

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
