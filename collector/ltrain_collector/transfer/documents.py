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

LONGEST = 64 << 20
"""Bytes of one document: where the Collector's own requests end. JSON takes up to twenty times its
length in memory."""

SKIPPED = 1 << 30
"""Bytes of a line that is too long, beyond which the file is not read on."""

STEP = 1 << 20

UNPACKED, RATIO = 1 << 30, 250
"""A file is refused once it has unpacked to more bytes than this and to so many times its size:
what agents send packs to a tenth, the same span over and over to a hundredth."""

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"

STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""A JSON string, or one that does not end on its line; it never goes back."""
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
    except BadRequest as error:
        yield Document(str(path), fault=str(error))


@contextmanager
def _opened(raw: BufferedReader) -> Iterator[BufferedIOBase]:
    head = raw.peek(4)
    plain: RawIOBase | None = None
    if head[:2] == GZIP:
        plain = _Unpacking(gzip.GzipFile(fileobj=raw), raw)
    elif head[:4] == ZSTD:
        plain = _Unpacking(zstd.ZstdFile(raw), raw)
    if plain is None:
        yield raw
        return
    with BufferedReader(plain, 1 << 16) as file:
        yield file


class _Unpacking(RawIOBase):
    """Gives what was unpacked before a file that is cut off raises."""

    def __init__(self, packed: Any, raw: BufferedReader) -> None:
        self._packed = packed
        self._raw = raw
        self._size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._packed.read1(len(buffer))
        buffer[: len(part)] = part
        self._size += len(part)
        if self._size > UNPACKED and self._bomb():
            raise BadRequest(
                f"it unpacks to more than {RATIO} times its size, {self._size >> 20} MiB so far: "
                "the rest is not read. Unpack it yourself if it is what it should be"
            )
        return len(part)

    def _bomb(self) -> bool:
        return self._raw.seekable() and self._size > RATIO * self._raw.tell()

    def close(self) -> None:
        self._packed.close()
        super().close()


def _texts(path: Path, file: BufferedIOBase) -> Iterator[Document]:
    text = bytearray()
    depth, began = 0, 1
    for number, line in enumerate(iter(lambda: file.readline(LONGEST), b""), 1):
        if text and OPENING.match(line):
            yield Document(f"{path}:{began}", fault="it is cut off")
            text, depth = bytearray(), 0
        if not text:
            if not line.strip():
                continue
            began = number
            if line[-2:-1] == b"}" and (found := _whole(line)) is not None:
                yield from _each(f"{path}:{number}", found)  # without a look at its brackets
                continue
        if len(text) + len(line) >= LONGEST:
            skipped = line[-1:] == b"\n" or _skip(file)
            rest = "" if skipped else "; the rest of the file is not read"
            why = f"it is longer than {LONGEST >> 20} MiB{rest}. Split it into several documents"
            yield Document(f"{path}:{began}", fault=why)
            if not skipped:
                return
            text, depth = bytearray(), 0
            continue
        text += line
        depth += _depth(line)
        if depth <= 0:
            yield from _parsed(f"{path}:{began}", bytes(text))
            text, depth = bytearray(), 0
    if text:
        yield Document(f"{path}:{began}", fault="it is cut off")


def _skip(file: BufferedIOBase) -> bool:
    """Read to the end of a line, and return whether it had one."""
    return any(file.readline(STEP)[-1:] in (b"\n", b"") for _ in range(SKIPPED // STEP))


def _whole(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None


def _depth(line: bytes) -> int:
    """Return how many more brackets a line opens than it closes."""
    plain = STRING.sub(b"", line)
    return sum(plain.count(each) for each in (b"{", b"[")) - sum(
        plain.count(each) for each in (b"}", b"]")
    )


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
            if LONGEST < size < LONGEST << 3:
                why += f", or a message is longer than {LONGEST >> 20} MiB"
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
