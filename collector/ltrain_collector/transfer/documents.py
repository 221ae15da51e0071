"""Split files of telemetry into documents: JSON texts or protobuf messages, in bounded memory.

It reads what the Collector's file exporter writes: one JSON text per line, or messages after their
length in four bytes, big-endian, each with or without zstd. It also reads JSON texts over several
lines. The whole file can be compressed with gzip or zstd.
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
from ltrain_collector.transfer import tables

MAX_DOCUMENT_BYTES = 64 << 20
"""Size limit of one document, as of the Collector's own requests. JSON takes up to twenty times its
size in memory."""

MAX_SKIPPED_BYTES = 1 << 30
"""Bytes of a line that is too long after which the rest of the file is not read."""

STEP_BYTES = 1 << 20

MAX_BLANKS = 1 << 20
"""Blank lines, or messages without content, in a row after which the rest is not read."""

MIN_BOMB_BYTES, MAX_RATIO = 1 << 30, 250
"""A file is refused once it has decompressed to more than this and to that many times its size:
agents' telemetry compresses to a tenth, repetitions of one span to a hundredth."""

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"

STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""A JSON string, also one without an end on its line; the pattern never backtracks."""
DOCUMENT_START = re.compile(rb'\s*\{\s*"(resource|rollout_id)')
"""The start of a compact document: a document before it that has not ended is truncated."""


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed JSON text, a protobuf message, or the reason why it cannot be read."""

    place: str
    """File and line, or file and byte offset."""
    json: Any = None
    protobuf: bytes = b""
    fault: str = ""
    read: int = 0
    """Bytes of the (compressed) file that have been read."""
    source: str = ""
    """The server and project that has it; '' for a file."""


def read_documents(path: Path) -> Iterator[Document]:
    """Yield the documents of a file; an unreadable one has a `fault`."""
    if path.suffix in tables.READERS:
        yield from _rows(path)
        return
    try:
        with path.open("rb") as raw, _decompressed(raw) as file:
            head = file.peek(64)  # type: ignore[attr-defined]
            split = _json_documents if head.lstrip()[:1] in (b"{", b"[") else _protobuf_documents
            for document in split(path, file):
                yield replace(document, read=raw.tell() if raw.seekable() else 0)
    except (OSError, EOFError, zstd.ZstdError, zlib.error) as error:
        yield Document(str(path), fault=f"it is truncated or damaged: {error}")
    except BadRequest as error:
        yield Document(str(path), fault=str(error))


def _rows(path: Path) -> Iterator[Document]:
    """Yield the rows of a table."""
    size, number = path.stat().st_size, 0
    try:
        for number, row in enumerate(tables.READERS[path.suffix](path), 1):
            yield Document(f"{path}, row {number}", json=row)
    except (OSError, ValueError) as error:  # pyarrow's errors are one of them
        yield Document(f"{path}, row {number + 1}", fault=f"it is damaged: {error}", read=size)


@contextmanager
def _decompressed(raw: BufferedReader) -> Iterator[BufferedIOBase]:
    head = raw.peek(4)
    plain: RawIOBase | None = None
    if head[:2] == GZIP:
        plain = _DecompressingReader(gzip.GzipFile(fileobj=raw), raw)
    elif head[:4] == ZSTD:
        plain = _DecompressingReader(zstd.ZstdFile(raw), raw)
    if plain is None:
        yield raw
        return
    with BufferedReader(plain, 1 << 16) as file:
        yield file


class _DecompressingReader(RawIOBase):
    """A decompressed file that returns all data before the error of a truncated one."""

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
        if self._size > MIN_BOMB_BYTES and self._is_bomb():
            raise BadRequest(
                f"it decompresses to more than {MAX_RATIO} times its size, {self._size >> 20} MiB "
                "so far, so the rest is not read. If it is valid, decompress it before the import"
            )
        return len(part)

    def _is_bomb(self) -> bool:
        return self._raw.seekable() and self._size > MAX_RATIO * self._raw.tell()

    def close(self) -> None:
        self._packed.close()
        super().close()


def _json_documents(path: Path, file: BufferedIOBase) -> Iterator[Document]:
    text = bytearray()
    depth, began, blank = 0, 1, 0
    for number, line in enumerate(iter(lambda: file.readline(MAX_DOCUMENT_BYTES), b""), 1):
        if text and DOCUMENT_START.match(line):
            yield Document(f"{path}:{began}", fault="it is truncated")
            text, depth = bytearray(), 0
        if not text:
            if not line.strip():
                blank += 1
                if blank > MAX_BLANKS:
                    why = f"it follows {MAX_BLANKS} blank lines; the rest is not read"
                    yield Document(f"{path}:{number}", fault=why)
                    return
                continue
            blank = 0
            began = number
            if line[-2:-1] == b"}" and (parsed := _parse_line(line)) is not None:
                yield from _split_list(f"{path}:{number}", parsed)  # the usual case: one line
                continue
        if len(text) + len(line) >= MAX_DOCUMENT_BYTES:
            skipped = line[-1:] == b"\n" or _skip(file)
            rest = "" if skipped else "; the rest of the file is not read"
            why = (
                f"it is longer than {MAX_DOCUMENT_BYTES >> 20} MiB{rest}. Split it into several "
                "documents"
            )
            yield Document(f"{path}:{began}", fault=why)
            if not skipped:
                return
            text, depth = bytearray(), 0
            continue
        text += line
        depth += _depth(line)
        if depth <= 0:
            yield from _parse_text(f"{path}:{began}", bytes(text))
            text, depth = bytearray(), 0
    if text:
        yield Document(f"{path}:{began}", fault="it is truncated")


def _skip(file: BufferedIOBase) -> bool:
    """Read to the end of a line, and return whether it has one."""
    return any(
        file.readline(STEP_BYTES)[-1:] in (b"\n", b"")
        for _ in range(MAX_SKIPPED_BYTES // STEP_BYTES)
    )


def _parse_line(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None


def _depth(line: bytes) -> int:
    """Return how many brackets a line opens, less those that it closes."""
    plain = STRING.sub(b"", line)
    return sum(plain.count(each) for each in (b"{", b"[")) - sum(
        plain.count(each) for each in (b"}", b"]")
    )


def _parse_text(place: str, text: bytes) -> Iterator[Document]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        yield Document(place, fault=f"it is not JSON: {error}")
        return
    yield from _split_list(place, value)


def _split_list(place: str, value: Any) -> Iterator[Document]:
    for each in value if isinstance(value, list) else [value]:
        yield Document(place, json=each)


def _protobuf_documents(path: Path, file: BufferedIOBase) -> Iterator[Document]:
    at = blank = 0
    while head := file.read(4):
        size = int.from_bytes(head, "big")
        blank = 0 if size else blank + 1
        place = f"{path}, byte {at}"
        if len(head) < 4 or size > MAX_DOCUMENT_BYTES or blank > MAX_BLANKS:
            why = "it is truncated" if len(head) < 4 else "it is neither OTLP in JSON nor protobuf"
            if MAX_DOCUMENT_BYTES < size < MAX_DOCUMENT_BYTES << 3:
                why += f", or a message is longer than {MAX_DOCUMENT_BYTES >> 20} MiB"
            yield Document(place, fault=why)
            return
        body = file.read(size)
        if len(body) < size:
            yield Document(place, fault=f"it is truncated: it has {len(body)} of {size} bytes")
            return
        at += 4 + size
        yield from _message(place, body)


def _message(place: str, body: bytes) -> Iterator[Document]:
    if body[:4] == ZSTD:
        try:
            body = _decompress(body)
        except (zstd.ZstdError, BadRequest) as error:
            yield Document(place, fault=f"its zstd cannot be read: {error}")
            return
    if body[:1] == b"{":
        yield from _parse_text(place, body)
    elif body:
        yield Document(place, protobuf=body)


def _decompress(body: bytes) -> bytes:
    unpacker = zstd.ZstdDecompressor()
    plain = unpacker.decompress(body, MAX_DOCUMENT_BYTES)
    if not unpacker.eof:
        raise BadRequest(
            f"it is truncated, or longer than {MAX_DOCUMENT_BYTES >> 20} MiB decompressed"
        )
    return bytes(plain)
