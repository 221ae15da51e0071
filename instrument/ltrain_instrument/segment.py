"""One append-only file of OTLP requests, which belongs to one process while it lives.

Ownership is flock(2): the kernel gives it up when the owner dies, however it dies, and another
process may then take the file over.
"""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self
from uuid import uuid4

from ltrain_instrument.frames import LONGEST, Reader, Record, batches, framed, mark_sent
from ltrain_instrument.private import make_private

SUFFIX = ".otlp"
REMEMBERED = 4 << 20
"""Bytes of a segment that its process keeps in memory, too; a longer one is read to be sent."""
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Segment:
    """A locked file of records; not thread safe."""

    __slots__ = ("_descriptor", "_end", "_own", "_reader", "path")

    def __init__(self, path: Path, descriptor: int, *, new: bool = False) -> None:
        self.path = path
        self._descriptor = descriptor
        self._reader: Reader | None = None
        self._own: list[Record] | None = [] if new else None
        """What this process has appended, so that it need not be read again."""
        self._end = 0

    @classmethod
    def create(cls, directory: Path) -> Self:
        """Create an empty segment and lock it."""
        while True:
            path = directory / f"{uuid4().hex}{SUFFIX}"
            try:
                descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
            except FileNotFoundError:
                make_private(directory)
                continue
            if _locked(descriptor) and os.fstat(descriptor).st_nlink:
                return cls(path, descriptor, new=True)
            os.close(descriptor)  # another process took the empty file for a dead one's

    @classmethod
    def adopt(cls, path: Path) -> Self | None:
        """Take over a segment whose owner is gone; None when it has an owner or was just sent.

        Raises:
            OSError: when it cannot be opened, or is no regular file.
        """
        try:
            descriptor = os.open(path, _FLAGS)
        except FileNotFoundError:
            return None
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, descriptor)
            opened = os.fstat(descriptor)
            if not stat.S_ISREG(opened.st_mode):
                raise OSError(errno.EINVAL, "It is no regular file", str(path))
            if not _locked(descriptor):
                return None
            # The owner may have removed it between open and flock: the name must still be this file
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_ino == opened.st_ino:
                    undo.pop_all()
                    return cls(path, descriptor)
        return None

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return os.fstat(self._descriptor).st_size

    def append(self, request: bytes) -> None:
        """Write one record; write(2) has returned for all of it, or nothing of it stays.

        Raises:
            OSError: when the disk does not take it, or it is larger than a record may be.
        """
        if len(request) > LONGEST:
            raise OSError(errno.EFBIG, f"A span of {len(request)} bytes is too large to keep")
        frame = framed(request)
        own, self._own = self._own, None  # whatever interrupts the write, the file can be read
        self._write(frame)
        if own is not None and self._end < REMEMBERED:
            own.append(Record(self._end, request))
            self._end += len(frame)
            self._own = own

    def _write(self, frame: bytes) -> None:
        written = 0
        try:
            while written < len(frame):
                written += os.write(self._descriptor, frame[written:])
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.size - written)
            raise

    def batches(self, limit: int) -> Iterator[list[Record]]:
        """Yield what waits in order, in lists of at most `limit` bytes or of one record."""
        if self._own is not None:
            return batches(self._own, limit)
        self._reader = Reader(self._descriptor)
        return batches(self._reader, limit)

    @property
    def damaged(self) -> int:
        """Bytes that `batches` has found to belong to no whole record."""
        return self._reader.damaged if self._reader is not None else 0

    def strike(self, records: Sequence[Record]) -> None:
        """Mark records as sent, so that nobody sends them again."""
        # Not the segment's own descriptor, which appends wherever it is told to write. Where the
        # disk refuses, the worst is that a span is sent twice.
        with contextlib.suppress(OSError):
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                for record in records:
                    mark_sent(descriptor, record)
            finally:
                os.close(descriptor)

    def remove(self) -> None:
        """Delete the file and give up the lock."""
        self.path.unlink(missing_ok=True)
        self.abandon()

    def release(self) -> None:
        """Give up the lock and leave the file to whoever adopts it; an empty one is deleted."""
        if self._descriptor >= 0 and self.size == 0:
            self.path.unlink(missing_ok=True)
        self.abandon()

    def abandon(self) -> None:
        """Close this process's descriptor; a forked child's copy would keep the lock for ever."""
        # -1 before close: a fork in between must not make the child close a number used anew
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
