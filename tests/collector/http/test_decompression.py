import gzip
import zlib
from collections.abc import Callable

import pytest
from backports.zstd import CompressionParameter, compress

from ltrain_collector.errors import Malformed, TooLarge, Unsupported
from ltrain_collector.http.decompression import inflate

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda body: gzip.compress(body, mtime=0),
    "deflate": zlib.compress,
    "zstd": compress,
}

each = pytest.mark.parametrize("encoding", PACKERS)


@each
@pytest.mark.parametrize("body", [b"", b"a", b"spans" * 1000])
def test_what_was_packed_is_unpacked(encoding: str, body: bytes) -> None:
    assert inflate(PACKERS[encoding](body), encoding, 5000) == body


@each
def test_a_bomb_is_not_decompressed(encoding: str) -> None:
    with pytest.raises(TooLarge, match="larger than the limit of 1 MiB"):
        inflate(PACKERS[encoding](bytes((1 << 20) + 1)), encoding, 1 << 20)


@each
def test_a_truncated_body_is_refused(encoding: str) -> None:
    with pytest.raises(Malformed, match=f"{encoding} body is truncated"):
        inflate(PACKERS[encoding](b"x" * 1000)[:-3], encoding, 5000)


@each
def test_a_body_with_bytes_after_its_end_is_refused(encoding: str) -> None:
    with pytest.raises(Malformed, match=f"{encoding} body has bytes after"):
        inflate(PACKERS[encoding](b"x") * 2, encoding, 5000)


@each
def test_a_body_with_the_wrong_encoding_is_refused(encoding: str) -> None:
    with pytest.raises(Malformed, match=f"not valid {encoding}"):
        inflate(b"abcdefgh", encoding, 5000)


def test_zstd_may_not_ask_for_a_large_window() -> None:
    body = compress(b"a", options={CompressionParameter.window_log: 27})
    assert inflate(body, "zstd", 5000) == b"a"
    streamed = compress(bytes(1 << 25), options={CompressionParameter.window_log: 25})
    with pytest.raises(Malformed, match="not valid zstd"):
        inflate(streamed, "zstd", 1 << 26)


def test_a_body_without_an_encoding_is_returned() -> None:
    body = gzip.compress(b"a", mtime=0)
    assert inflate(body, "", 5) is body
    assert inflate(body, "identity", 5) is body


def test_an_unknown_encoding_is_refused() -> None:
    with pytest.raises(Unsupported, match="'br' is not supported; use gzip, deflate, zstd"):
        inflate(b"a", "br", 5000)
