"""Bodies and answers, packed as a client asks: HTTP's encodings, ClickHouse's own blocks."""

import zlib
from collections.abc import Callable
from typing import Any, Protocol

from ltrain_collector.asgi import Refused, too_long
from ltrain_collector.unpackers import Zlib


class Packer(Protocol):
    """Packs an answer part by part."""

    def compress(self, part: bytes) -> bytes: ...
    def flush(self) -> bytes: ...


class Plain:
    """Packs nothing."""

    def compress(self, part: bytes) -> bytes:
        return part

    def flush(self) -> bytes:
        return b""


def packer(accepted: str) -> tuple[str, Packer]:
    """Choose among what `Accept-Encoding` lists; gives the encoding's name, '' for none."""
    listed = {one.partition(";")[0].strip() for one in accepted.lower().split(",")}
    for name, make in _PACK.items():
        if name in listed:
            return name, make()
    return "", Plain()


STEP = 64 << 20
"""Bytes that are unpacked at a time, and counted before the next."""

Grow = Callable[[int], None]
"""Counts bytes that a request holds in addition, and raises where there is no place for them."""


def unpack(body: bytes, encoding: str, limit: int, grow: Grow) -> bytes:
    """Unpack a body.

    Raises:
        Refused: when the encoding is not known, the body is not of it, or is longer than `limit`.
    """
    if not body or encoding in ("", "identity"):
        return body
    make = _UNPACK.get(encoding)
    if make is None:
        known = ", ".join(_UNPACK)
        raise Refused(415, f"Content-Encoding '{encoding}' is not read here; {known} are.")
    parts: list[bytes] = []
    size = 0
    while body:  # one member after another
        unpacker = make()
        while not unpacker.eof:
            try:
                part = unpacker.decompress(body, min(STEP, limit + 1 - size))
            # lz4 raises RuntimeError, zlib and zstd their own
            except Exception as error:
                raise Refused(400, f"The body is not {encoding}: {error}.") from error
            body = b""
            parts.append(part)
            size += len(part)
            if size > limit:
                del part, parts  # the refusal lives on for a while, and this frame with it
                raise too_long(limit)
            if not (part or unpacker.eof):
                raise Refused(400, f"The {encoding} body ends too early.")
            grow(len(part))
        body = unpacker.unused_data or b""
    return b"".join(parts)


HEAD = 25
"""Bytes before a block's data: a checksum of 16, the method, its sizes packed and plain."""


def blocks(body: bytes, limit: int, grow: Grow) -> bytes:
    """Unpack ClickHouse's own compressed blocks, as `decompress=1` announces them."""
    parts: list[bytes] = []
    at = size = 0
    while at < len(body):
        method = body[at + 16] if at + HEAD <= len(body) else 0
        packed = int.from_bytes(body[at + 17 : at + 21], "little")
        plain = int.from_bytes(body[at + 21 : at + HEAD], "little")
        end = at + 16 + packed
        size += plain
        if method not in _BLOCK or end > len(body) or packed < 9:
            raise Refused(400, "Code: 271. DB::Exception: The body is not of compressed blocks.")
        if size > limit:
            raise too_long(limit)
        grow(plain)
        try:
            parts.append(_BLOCK[method](body[at + HEAD : end], plain))
        # lz4.block and zstd each have their own
        except Exception as error:
            text = f"Code: 271. DB::Exception: A compressed block is damaged: {error}."
            raise Refused(400, text) from error
        at = end
    return b"".join(parts)


def _lz4_block(data: bytes, size: int) -> bytes:
    import lz4.block

    return bytes(lz4.block.decompress(data, uncompressed_size=size))


def _zstd_block(data: bytes, size: int) -> bytes:
    from backports import zstd

    return bytes(zstd.ZstdDecompressor().decompress(data, size))


_BLOCK: dict[int, Callable[[bytes, int], bytes]] = {
    0x02: lambda data, size: data,
    0x82: _lz4_block,
    0x90: _zstd_block,
}


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


_PACK: dict[str, Callable[[], Packer]] = {
    "zstd": _zstd_packer,
    "lz4": _Lz4Packer,
    "gzip": lambda: zlib.compressobj(1, wbits=31),
    "deflate": lambda: zlib.compressobj(1),
}

_UNPACK: dict[str, Callable[[], Any]] = {
    "gzip": lambda: Zlib(31),
    "deflate": lambda: Zlib(15),
    "lz4": _lz4,
    "zstd": _zstd,
}
