"""Compressed bodies, unpacked up to a limit."""

import zlib
from collections.abc import Callable

from backports.zstd import DecompressionParameter, ZstdDecompressor, ZstdError

from ltrain_collector.ingest.refusals import Malformed, TooLarge, Unsupported
from ltrain_collector.unpackers import Unpacker, Zlib

WINDOW_LOG = 23
"""8 MiB, the most that RFC 9659 lets zstd ask of an HTTP server's memory."""


def inflate(body: bytes, encoding: str, limit: int) -> bytes:
    """Give `body` as it was before `encoding`: one of gzip, deflate, zstd, identity or ''.

    Raises:
        Malformed: when it is not that.
        TooLarge: when it is longer than `limit` once unpacked.
        Unsupported: when the encoding is another.
    """
    if encoding in ("", "identity"):
        return body
    if encoding not in UNPACKERS:
        raise Unsupported(
            f"Content-Encoding '{encoding}' is not read here; send gzip, deflate, zstd or none."
        )
    unpacker = UNPACKERS[encoding]()
    try:
        plain = unpacker.decompress(body, limit + 1)
    except (zlib.error, ZstdError) as error:
        raise Malformed(f"The body is not {encoding}: {error}.") from error
    if len(plain) > limit:
        del plain  # the refusal lives on for a while, and this frame with it
        raise too_large(limit)
    if not unpacker.eof:
        raise Malformed(f"The {encoding} body ends too early.")
    if unpacker.unused_data:
        raise Malformed(f"The {encoding} body goes on after its end.")
    return plain


def too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body is longer than {limit >> 20} MiB. Send less at a time.")


def _zstd() -> ZstdDecompressor:
    return ZstdDecompressor(options={DecompressionParameter.window_log_max: WINDOW_LOG})


UNPACKERS: dict[str, Callable[[], Unpacker]] = {
    "gzip": lambda: Zlib(31),
    "deflate": lambda: Zlib(15),
    "zstd": _zstd,
}
