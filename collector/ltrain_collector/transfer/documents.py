"""Files of telemetry, cut into documents: JSON texts or protobuf messages, each with its place.

As the Collector's file exporter writes them: a JSON text a line, or messages with their length
before them in four bytes, big end first; each message perhaps packed with zstd. And JSON texts over
many lines, one after another. A whole file may be packed with gzip or zstd. In bounded memory.
"""

import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BufferedIOBase, BufferedReader, RawIOBase
from pathlib import Path
from typing import Any

import orjson
from backports import zstd

from ltrain_collector.errors import BadRequest

LONGEST = 256 << 20
"""Bytes of one document; the Collector's own requests end at 64 MiB."""

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"

TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]')
OPENING = re.compile(rb'\s*\{\s*"(resource|rollout_id)')
"""How a compact document begins: one that did not end before it is torn."""


@dataclass(frozen=True, slots=True)
class Document:
    """A JSON text, parsed, or a protobuf message; or why it is neither."""

    place: str
    """File and line, or file and byte."""
    json: Any = None
    protobuf: bytes = b""
    fault: str = ""
    read: int = 0
    """Bytes of the file, packed as it is, that were read until here."""


def documents(path: Path) -> Iterator[Document]:
    """Give the documents of a file; what cannot be read is one with a fault."""
    try:
        with path.open("rb") as raw, _opened(raw) as file:
            head = file.peek(64)  # type: ignore[attr-defined]
            cut = _texts if head.lstrip()[:1] in (b"{", b"[") else _messages
            for document in cut(path, file):
                yield replace(document, read=raw.tell() if raw.seekable() else 0)
    except (OSError, EOFError, zstd.ZstdError, zlib.error) as error:
        yield Document(str(path), fault=f"it ends too early or is damaged: {error}")


@contextmanager
def _opened(raw: BufferedReader) -> Iterator[BufferedIOBase]:
    head = raw.peek(4)
    plain: RawIOBase | None = None
    if head[:2] == GZIP:
        plain = _Unpacking(gzip.GzipFile(fileobj=raw))
    elif head[:4] == ZSTD:
        plain = _Unpacking(zstd.ZstdFile(raw))
    if plain is None:
        yield raw
        return
    with BufferedReader(plain, 1 << 16) as file:
        yield file


class _Unpacking(RawIOBase):
    """Gives what was unpacked before a file that is cut off raises."""

    def __init__(self, packed: Any) -> None:
        self._packed = packed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._packed.read1(len(buffer))
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        self._packed.close()
        super().close()


def _texts(path: Path, file: BufferedIOBase) -> Iterator[Document]:
    lines: list[bytes] = []
    depth = size = 0
    began = 1
    for number, line in enumerate(iter(lambda: file.readline(LONGEST), b""), 1):
        if lines and OPENING.match(line):
            yield Document(f"{path}:{began}", fault="it is cut off")
            lines, depth, size = [], 0, 0
        if not lines:
            if not line.strip():
                continue
            began = number
            if line[-2:-1] == b"}" and (given := _whole(line)) is not None:
                yield from _each(f"{path}:{number}", given)  # without a look at its brackets
                continue
        lines.append(line)
        size += len(line)
        depth += _depth(line)
        if size >= LONGEST:
            yield Document(f"{path}:{began}", fault=f"it is longer than {LONGEST >> 20} MiB")
            return
        if depth <= 0:
            yield from _parsed(f"{path}:{began}", b"".join(lines))
            lines, depth, size = [], 0, 0
    if lines:
        yield Document(f"{path}:{began}", fault="it is cut off")


def _whole(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None


def _depth(line: bytes) -> int:
    tokens = TOKEN.findall(line)
    return sum((t in (b"{", b"[")) - (t in (b"}", b"]")) for t in tokens)


def _parsed(place: str, text: bytes) -> Iterator[Document]:
    try:
        given = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        yield Document(place, fault=f"it is not JSON: {error}")
        return
    yield from _each(place, given)


def _each(place: str, given: Any) -> Iterator[Document]:
    for each in given if isinstance(given, list) else [given]:
        yield Document(place, json=each)


def _messages(path: Path, file: BufferedIOBase) -> Iterator[Document]:
    at = 0
    while head := file.read(4):
        size = int.from_bytes(head, "big")
        place = f"{path}, byte {at}"
        if len(head) < 4 or size > LONGEST:
            why = "it is cut off" if len(head) < 4 else "it is neither OTLP JSON nor its protobuf"
            yield Document(place, fault=why)
            return
        body = file.read(size)
        if len(body) < size:
            yield Document(
                place, fault=f"{size} bytes should follow, {len(body)} do: it is cut off"
            )
            return
        at += 4 + size
        yield from _message(place, body)


def _message(place: str, body: bytes) -> Iterator[Document]:
    if body[:4] == ZSTD:
        try:
            body = _unpacked(body)
        except (zstd.ZstdError, BadRequest) as error:
            yield Document(place, fault=f"its zstd cannot be read: {error}")
            return
    if body[:1] == b"{":
        yield from _parsed(place, body)
    elif body:
        yield Document(place, protobuf=body)


def _unpacked(body: bytes) -> bytes:
    unpacker = zstd.ZstdDecompressor()
    plain = unpacker.decompress(body, LONGEST)
    if not unpacker.eof:
        raise BadRequest(f"it ends too early, or is longer than {LONGEST >> 20} MiB unpacked")
    return bytes(plain)
