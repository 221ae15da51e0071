"""The record format of spool files: damage to one record leaves its neighbours readable.

Each record is a mark of four bytes, the length of the request, a checksum of both, and the request.
A reader that finds anything else searches for the next mark with a valid checksum.
"""

import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_MARK = b"\xf5LT"
WAITING, SENT = _MARK + b"+", _MARK + b"-"
_HEAD = struct.Struct(">4sII")
_LENGTH = struct.Struct(">I")
MAX_RECORD_BYTES = 64 << 20
"""Bytes of one request; collectors accept 16 MiB."""
MAX_DAMAGED_BYTES = 256 << 20
"""Bytes of damage that are searched for complete records; what follows them is not read."""
_FALSE_MARK_COST = 1 << 10
"""Bytes that a mark without a complete record counts in this search."""
_WINDOW = 1 << 20


@dataclass(frozen=True, slots=True)
class Record:
    offset: int
    """Position of the record in its file."""
    request: bytes


def encode_record(request: bytes) -> bytes:
    """Return a request as a record that is not sent yet."""
    return _HEAD.pack(WAITING, len(request), _checksum(request)) + request


def write_sent_mark(descriptor: int, record: Record) -> None:
    """Mark a record as sent; the file must not be open for appending."""
    os.pwrite(descriptor, SENT, record.offset)


def _checksum(request: bytes) -> int:
    return zlib.crc32(request, zlib.crc32(_LENGTH.pack(len(request))))


class RecordReader:
    """Iterates once over the unsent records of a file, in their order."""

    __slots__ = ("_begin", "_descriptor", "_searched", "_size", "_window", "damaged")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size
        self._searched = 0
        self._window, self._begin = b"", 0
        self.damaged = 0
        """Number of bytes so far that belong to no complete record."""

    def __iter__(self) -> Iterator[Record]:
        offset = 0
        while offset < self._size:
            record = self._record(offset)
            if record is None:
                next_offset = self._next_mark(offset + 1)
                self.damaged += next_offset - offset
                offset = next_offset
                continue
            mark, request = record
            if mark == WAITING:
                yield Record(offset, request)
            offset += _HEAD.size + len(request)

    def _record(self, offset: int) -> tuple[bytes, bytes] | None:
        head = os.pread(self._descriptor, _HEAD.size, offset)
        if len(head) < _HEAD.size:
            return None
        mark, length, checksum = _HEAD.unpack(head)
        available = self._size - offset - _HEAD.size
        if mark not in (WAITING, SENT) or not 0 < length <= min(available, MAX_RECORD_BYTES):
            return None
        request = os.pread(self._descriptor, length, offset + _HEAD.size)
        if len(request) == length and _checksum(request) == checksum:
            return mark, request
        self._searched += length
        return None

    def _next_mark(self, offset: int) -> int:
        """Return the offset at which the next record may start, or the size of the file."""
        self._searched += _FALSE_MARK_COST
        while offset < self._size and self._searched <= MAX_DAMAGED_BYTES:
            # Each byte is read once, regardless of the number of false marks
            if not self._begin <= offset <= self._begin + len(self._window) - len(_MARK):
                self._window, self._begin = os.pread(self._descriptor, _WINDOW, offset), offset
            position = self._window.find(_MARK, offset - self._begin)
            if position >= 0:
                return self._begin + position
            if len(self._window) < _WINDOW:
                break
            next_offset = self._begin + _WINDOW - len(_MARK) + 1
            self._searched += next_offset - offset
            offset = next_offset
        return self._size


def batch_records(records: Iterable[Record], limit: int) -> Iterator[list[Record]]:
    """Yield the records in order, in lists of at most `limit` bytes or of one record."""
    batch: list[Record] = []
    size = 0
    for record in records:
        if batch and size + len(record.request) > limit:
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += len(record.request)
    if batch:
        yield batch
