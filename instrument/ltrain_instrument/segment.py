"""One append-only file of OTLP requests, which belongs to one process while it lives.

Ownership is flock(2): the kernel gives it up when the owner dies, however it dies, and another
process may then take the file over. A frame is four bytes of length and one serialised request.
"""

import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Self
from uuid import uuid4

from ltrain_instrument.private import make_private

SUFFIX = ".otlp"
_LENGTH = struct.Struct(">I")


class Segment:
    """A locked file of frames; not thread safe."""

    __slots__ = ("_descriptor", "path", "size")

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size

    @classmethod
    def create(cls, directory: Path) -> Self:
        """Make an empty segment that is locked before others can see it."""
        make_private(directory)
        name = uuid4().hex
        hidden = directory / f".{name}"
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(hidden, flags, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path = directory / f"{name}{SUFFIX}"
        hidden.rename(path)
        return cls(path, descriptor)

    @classmethod
    def adopt(cls, path: Path) -> Self | None:
        """Take over a segment whose owner is gone; None when it has an owner or was just sent."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The owner may have removed it between open and flock: the name must still be this file
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                return cls(path, descriptor)
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(descriptor)
        return None

    def append(self, request: bytes) -> None:
        """Write one frame; write(2) has returned for all of it, or nothing of it stays."""
        frame = memoryview(_LENGTH.pack(len(request)) + request)
        try:
            while frame:
                frame = frame[os.write(self._descriptor, frame) :]
        except OSError:
            os.ftruncate(self._descriptor, self.size)  # half a frame would hide those behind it
            raise
        self.size += _LENGTH.size + len(request)

    def batches(self, limit: int) -> Iterator[list[bytes]]:
        """Give the requests in order, in lists of at most `limit` bytes or of one request."""
        batch: list[bytes] = []
        weight = 0
        for request in self._requests():
            if batch and weight + len(request) > limit:
                yield batch
                batch, weight = [], 0
            batch.append(request)
            weight += len(request)
        if batch:
            yield batch

    def _requests(self) -> Iterator[bytes]:
        offset = 0
        while len(head := os.pread(self._descriptor, _LENGTH.size, offset)) == _LENGTH.size:
            (length,) = _LENGTH.unpack(head)
            request = os.pread(self._descriptor, length, offset + _LENGTH.size)
            if length == 0 or len(request) < length:
                return  # the owner died while it wrote this frame
            yield request
            offset += _LENGTH.size + length

    def remove(self) -> None:
        """Delete the file and give up the lock."""
        self.path.unlink(missing_ok=True)
        self.abandon()

    def release(self) -> None:
        """Give up the lock and leave the file to whoever adopts it; an empty one is deleted."""
        if self.size == 0:
            self.path.unlink(missing_ok=True)
        self.abandon()

    def abandon(self) -> None:
        """Close this process's descriptor; a forked child's copy would keep the lock for ever."""
        # -1 before close: a fork in between must not make the child close a number used anew
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
