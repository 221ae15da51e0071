"""Compression of requests and responses: HTTP's encodings and ClickHouse's own blocks."""

import zlib
from collections.abc import Callable
from typing import Any, Protocol

from ltrain_collector.errors import HttpError
from ltrain_collector.http import Zlib


def body_too_large(limit: int) -> HttpError:
    """Return the error for a body of more than `limit` bytes, compressed or not."""
    return HttpError(
        413, f"The body is larger than the limit of {limit >> 20} MiB. Send less at a time."
    )


class Packer(Protocol):
    """Compresses a response part by part."""

    def compress(self, part: bytes) -> bytes: ...
    def flush(self) -> bytes: ...


class Plain:
    """Compresses nothing."""

    def compress(self, part: bytes) -> bytes:
        return part

    def flush(self) -> bytes:
        return b""


def choose_packer(accepted: str) -> tuple[str, Packer]:
    """Return an encoding that `Accept-Encoding` lists and its packer; '' for no compression."""
    listed = {one.partition(";")[0].strip() for one in accepted.lower().split(",")}
    for name, make in _PACKERS.items():
        if name in listed:
            return name, make()
    return "", Plain()


STEP_BYTES = 64 << 20
"""Bytes that are decompressed and counted at a time."""

Grow = Callable[[int], None]
"""Counts additional bytes of a request, and raises if they do not fit."""


def decompress_body(body: bytes, encoding: str, limit: int, grow: Grow) -> bytes:
    """Decompress a body."""
    if not body or encoding in ("", "identity"):
        return body
    make = _UNPACKERS.get(encoding)
    if make is None:
        known = ", ".join(_UNPACKERS)
        raise HttpError(415, f"Content-Encoding '{encoding}' is not supported; use {known}.")
    parts: list[bytes] = []
    size = 0
    while body:  # one compressed member after another
        unpacker = make()
        while not unpacker.eof:
            try:
                part = unpacker.decompress(body, min(STEP_BYTES, limit + 1 - size))
            # lz4 raises RuntimeError, zlib and zstd their own errors
            except Exception as error:
                raise HttpError(400, f"The body is not valid {encoding}: {error}.") from error
            body = b""
            parts.append(part)
            size += len(part)
            if size > limit:
                del part, parts  # the exception keeps this frame alive
                raise body_too_large(limit)
            if not (part or unpacker.eof):
                raise HttpError(400, f"The {encoding} body is truncated.")
            grow(len(part))
        body = unpacker.unused_data or b""
    return b"".join(parts)


BLOCK_HEADER_BYTES = 25
"""Bytes before a block's data: a checksum of 16, the method, the compressed and the plain size."""


LZ4_METHOD = 0x82
"""The method of a block that is compressed with LZ4, the only one that clients of ltrain send."""


def decompress_blocks(body: bytes, limit: int, grow: Grow) -> bytes:
    """Decompress ClickHouse's own LZ4 blocks, which `decompress=1` announces."""
    import lz4.block

    parts: list[bytes] = []
    at = size = 0
    while at < len(body):
        method = body[at + 16] if at + BLOCK_HEADER_BYTES <= len(body) else 0
        packed = int.from_bytes(body[at + 17 : at + 21], "little")
        plain = int.from_bytes(body[at + 21 : at + BLOCK_HEADER_BYTES], "little")
        end = at + 16 + packed
        size += plain
        if method != LZ4_METHOD or end > len(body) or packed < 9:
            raise HttpError(400, "Code: 271. DB::Exception: The body is not of LZ4 blocks.")
        if size > limit:
            raise body_too_large(limit)
        grow(plain)
        try:
            data = body[at + BLOCK_HEADER_BYTES : end]
            parts.append(bytes(lz4.block.decompress(data, uncompressed_size=plain)))
        except lz4.block.LZ4BlockError as error:
            text = f"Code: 271. DB::Exception: A compressed block is damaged: {error}."
            raise HttpError(400, text) from error
        at = end
    return b"".join(parts)


class _Lz4Packer:
    def __init__(self) -> None:
        import lz4.frame

        self._inner: Any = lz4.frame.LZ4FrameCompressor()
        self._head = bytes(self._inner.begin())

    def compress(self, part: bytes) -> bytes:
        head, self._head = self._head, b""
        return head + bytes(self._inner.compress(part))

    def flush(self) -> bytes:
        head, self._head = self._head, b""
        return head + bytes(self._inner.flush())


def _lz4() -> Any:
    import lz4.frame

    return lz4.frame.LZ4FrameDecompressor()


def _zstd() -> Any:
    from backports import zstd

    return zstd.ZstdDecompressor()


def _zstd_packer() -> Any:
    from backports import zstd

    return zstd.ZstdCompressor(level=1)


_PACKERS: dict[str, Callable[[], Packer]] = {
    "zstd": _zstd_packer,
    "lz4": _Lz4Packer,
    "gzip": lambda: zlib.compressobj(1, wbits=31),
    "deflate": lambda: zlib.compressobj(1),
}

_UNPACKERS: dict[str, Callable[[], Any]] = {
    "gzip": lambda: Zlib(31),
    "deflate": lambda: Zlib(15),
    "lz4": _lz4,
    "zstd": _zstd,
}
