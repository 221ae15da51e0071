"""An append-only file of OTLP requests that belongs to one process while it lives.

Ownership is an flock(2) lock: the kernel releases it when the owner dies, in any way, and another
process may then adopt the file.
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

from ltrain_instrument.delivery.disk_quota import DiskQuota
from ltrain_instrument.delivery.frames import (
    MAX_RECORD_BYTES,
    Record,
    RecordReader,
    batch_records,
    encode_record,
    write_sent_mark,
)
from ltrain_instrument.files import make_private

SUFFIX = ".otlp"
MAX_CACHED_BYTES = 4 << 20
"""Bytes of a segment that its process also keeps in memory; a longer segment is read from disk."""
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Segment:
    """A locked file of records; not thread-safe."""

    __slots__ = ("_cached", "_descriptor", "_end", "_reader", "path")

    def __init__(self, path: Path, descriptor: int, *, new: bool = False) -> None:
        self.path = path
        self._descriptor = descriptor
        self._reader: RecordReader | None = None
        self._cached: list[Record] | None = [] if new else None
        """Records that this process has appended, so that they need not be read again."""
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
            if _try_lock(descriptor) and os.fstat(descriptor).st_nlink:
                return cls(path, descriptor, new=True)
            os.close(descriptor)  # another process has adopted the empty file

    @classmethod
    def adopt(cls, path: Path) -> Self | None:
        """Take over a segment whose owner is dead; None if it has an owner or was just sent."""
        try:
            descriptor = os.open(path, _FLAGS)
        except FileNotFoundError:
            return None
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(os.close, descriptor)
            file_status = os.fstat(descriptor)
            if not stat.S_ISREG(file_status.st_mode):
                raise OSError(errno.EINVAL, "It is not a regular file", str(path))
            if not _try_lock(descriptor):
                return None
            # The owner may have removed it between open and flock: the name must still be this file
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_ino == file_status.st_ino:
                    on_failure.pop_all()
                    return cls(path, descriptor)
        return None

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return os.fstat(self._descriptor).st_size

    def append(self, request: bytes) -> None:
        """Write one record completely or not at all."""
        if len(request) > MAX_RECORD_BYTES:
            raise OSError(
                errno.EFBIG,
                f"A span of {len(request)} bytes exceeds the limit of {MAX_RECORD_BYTES} bytes",
            )
        frame = encode_record(request)
        cached, self._cached = self._cached, None  # after an interrupted write the file is read
        self._write(frame)
        if cached is not None and self._end < MAX_CACHED_BYTES:
            cached.append(Record(self._end, request))
            self._end += len(frame)
            self._cached = cached

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
        """Yield the unsent records in order, in lists of at most `limit` bytes or of one record."""
        if self._cached is not None:
            return batch_records(self._cached, limit)
        self._reader = RecordReader(self._descriptor)
        return batch_records(self._reader, limit)

    @property
    def damaged(self) -> int:
        """Number of bytes that `batches` found to belong to no complete record."""
        return self._reader.damaged if self._reader is not None else 0

    def mark_sent(self, records: Sequence[Record]) -> None:
        """Mark records as sent, so that no process sends them again."""
        # Not the segment's own descriptor: O_APPEND ignores the offset of a write. If the
        # disk fails, a span may be sent twice.
        with contextlib.suppress(OSError):
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                for record in records:
                    write_sent_mark(descriptor, record)
            finally:
                os.close(descriptor)

    def remove(self) -> None:
        """Delete the file and release the lock."""
        self.path.unlink(missing_ok=True)
        self.abandon()

    def release(self) -> None:
        """Release the lock, so that others may adopt the file; an empty file is deleted."""
        if self._descriptor >= 0 and self.size == 0:
            self.path.unlink(missing_ok=True)
        self.abandon()

    def abandon(self) -> None:
        """Close the descriptor; a copy in a forked child would hold the lock indefinitely."""
        # -1 before close: after a fork in between, the child must not close a reused number
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Quarantine:
    """One such folder, with a size limit in bytes that processes share."""

    def __init__(self, directory: Path, limit: int) -> None:
        self.directory = directory
        self._quota = DiskQuota(directory, limit)

    def write_request(self, request: bytes) -> None:
        """Write one request to a file of its own."""
        self._quota.reserve(len(request))
        segment = Segment.create(self.directory)
        try:
            segment.append(request)
        finally:
            segment.release()

    def move_file(self, path: Path) -> str:
        """Move a file, or what is in its place, into the folder; return the result in words."""
        try:
            self._quota.reserve(path.lstat().st_size)
            make_private(self.directory)
            target = path.rename(self.directory / path.name)
        except OSError as error:  # the folder is full or not writable
            return f"It was not moved: {error}"
        return f"It was moved to {str(target)!r}."
