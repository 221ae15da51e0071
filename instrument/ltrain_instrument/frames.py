"""Records of a spool file: damage to one leaves its neighbours readable.

A record is a mark of four bytes, the length of the request, a checksum of both, and the request.
A reader that meets anything else looks for the next mark whose checksum holds.
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
LONGEST = 64 << 20
"""Bytes of one request; collectors take 16 MiB."""
ENDURED = 256 << 20
"""Bytes of damage that are searched for whole records; what comes after them is given up."""
_FALSE_MARK = 1 << 10
"""Bytes of such a search that a mark without a whole record counts for."""
_WINDOW = 1 << 20


@dataclass(frozen=True, slots=True)
class Record:
    offset: int
    """Where it begins in its file."""
    request: bytes


def framed(request: bytes) -> bytes:
    """Return a request as a record that waits to be sent."""
    return _HEAD.pack(WAITING, len(request), _checksum(request)) + request


def mark_sent(descriptor: int, record: Record) -> None:
    """Mark a record as sent; the file must not be open for appending."""
    os.pwrite(descriptor, SENT, record.offset)


def _checksum(request: bytes) -> int:
    return zlib.crc32(request, zlib.crc32(_LENGTH.pack(len(request))))


class Reader:
    """Iterates once over the records of a file that wait, in their order."""

    __slots__ = ("_begin", "_descriptor", "_endured", "_size", "_window", "damaged")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size
        self._endured = 0
        self._window, self._begin = b"", 0
        self.damaged = 0
        """Bytes so far that belong to no whole record."""

    def __iter__(self) -> Iterator[Record]:
        offset = 0
        while offset < self._size:
            found = self._record(offset)
            if found is None:
                following = self._next_mark(offset + 1)
                self.damaged += following - offset
                offset = following
                continue
            mark, request = found
            if mark == WAITING:
                yield Record(offset, request)
            offset += _HEAD.size + len(request)

    def _record(self, offset: int) -> tuple[bytes, bytes] | None:
        head = os.pread(self._descriptor, _HEAD.size, offset)
        if len(head) < _HEAD.size:
            return None
        mark, length, checksum = _HEAD.unpack(head)
        room = self._size - offset - _HEAD.size
        if mark not in (WAITING, SENT) or not 0 < length <= min(room, LONGEST):
            return None
        request = os.pread(self._descriptor, length, offset + _HEAD.size)
        if len(request) == length and _checksum(request) == checksum:
            return mark, request
        self._endured += length
        return None

    def _next_mark(self, offset: int) -> int:
        """Return where the next record may begin; the file's size where none does."""
        self._endured += _FALSE_MARK
        while offset < self._size and self._endured <= ENDURED:
            # Each byte is read once, however many false marks there are
            if not self._begin <= offset <= self._begin + len(self._window) - len(_MARK):
                self._window, self._begin = os.pread(self._descriptor, _WINDOW, offset), offset
            at = self._window.find(_MARK, offset - self._begin)
            if at >= 0:
                return self._begin + at
            if len(self._window) < _WINDOW:
                break
            following = self._begin + _WINDOW - len(_MARK) + 1
            self._endured += following - offset
            offset = following
        return self._size


def batches(records: Iterable[Record], limit: int) -> Iterator[list[Record]]:
    """Yield the records in order, in lists of at most `limit` bytes or of one record."""
    batch: list[Record] = []
    weight = 0
    for record in records:
        if batch and weight + len(record.request) > limit:
            yield batch
            batch, weight = [], 0
        batch.append(record)
        weight += len(record.request)
    if batch:
        yield batch
