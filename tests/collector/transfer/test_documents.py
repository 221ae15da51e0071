"""Files of every format are split into documents with their places; truncated ones are reported."""

import gzip
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from backports import zstd

from ltrain_collector.transfer.documents import read_documents

ONE, TWO = {"resourceSpans": [{"a": '{"['}]}, {"resourceSpans": [], "b": '\\"'}
LINES = b"".join(json.dumps(each).encode() + b"\n" for each in (ONE, TWO))
PRETTY = json.dumps(ONE, indent=1) + "\n" + json.dumps(TWO, indent=0)


def read(path: Path, content: bytes) -> list[Any]:
    path.write_bytes(content)
    return [each.fault or each.protobuf or each.json for each in read_documents(path)]


def framed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd.compress], ids=["plain", "gz", "zst"])
@pytest.mark.parametrize("text", [LINES, PRETTY.encode(), json.dumps([ONE, TWO]).encode()])
def test_json_texts(tmp_path: Path, pack: Any, text: bytes) -> None:
    assert read(tmp_path / "f", pack(text)) == [ONE, TWO]


def test_messages_with_their_length(tmp_path: Path) -> None:
    assert read(tmp_path / "f", framed(b"\x0a\x01", b"", b"\x0a\x02")) == [b"\x0a\x01", b"\x0a\x02"]


def test_messages_that_are_compressed_one_by_one(tmp_path: Path) -> None:
    bodies = (json.dumps(ONE).encode(), b"\x0a\x01")
    assert read(tmp_path / "f", framed(*map(zstd.compress, bodies))) == [ONE, b"\x0a\x01"]
    torn = framed(zstd.compress(b"x" * 999)[:-3], zstd.compress(bodies[1]))
    fault, whole = read(tmp_path / "f", torn)
    assert fault.startswith("its zstd cannot be read")
    assert whole == b"\x0a\x01"


@pytest.mark.parametrize(
    ("content", "parsed"),
    [
        (b"", []),
        (LINES + b'{"resourceSpans":[{', [ONE, TWO, "it is truncated"]),
        (b'{"resourceSpans":[{\n' + LINES, ["it is truncated", ONE, TWO]),
        (
            framed(b"\x0a\x01") + b"\0\0\0\x09abc",
            [b"\x0a\x01", "it is truncated: it has 3 of 9 bytes"],
        ),
        (b"PK\3\4 not ours", ["it is neither OTLP in JSON nor protobuf"]),
    ],
)
def test_complete_documents_of_a_truncated_file_are_read(
    tmp_path: Path, content: bytes, parsed: list[Any]
) -> None:
    assert read(tmp_path / "f", content) == parsed


def test_complete_documents_of_a_truncated_compressed_file_are_read(tmp_path: Path) -> None:
    all_of_it = [{"resourceSpans": sha256(bytes([n])).hexdigest()} for n in range(250)] * 40
    packed = zstd.compress(b"".join(json.dumps(each).encode() + b"\n" for each in all_of_it))
    *whole, fault = read(tmp_path / "f", packed[: len(packed) - 9])
    assert 0 < len(whole) < len(all_of_it)
    assert whole == all_of_it[: len(whole)]
    assert fault.startswith("it is truncated or damaged")
    assert read(tmp_path / "f", gzip.compress(LINES)[:-9])[-1].startswith("it is truncated")


def test_the_line_of_what_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(LINES + b"{nonsense}\n" + LINES)
    parsed = list(read_documents(tmp_path / "f"))
    assert [each.json for each in parsed if not each.fault] == [ONE, TWO, ONE, TWO]
    [bad] = [each for each in parsed if each.fault]
    assert bad.place == f"{tmp_path}/f:3"
    assert bad.fault.startswith("it is not JSON: ")
