"""A transport that sends what a handler writes at once with one system call.

Uvicorn writes the head of a response and its body apart, and the event loop sends each at once: the
client wakes up twice, and the second call costs as much as the first.
"""

import asyncio
from typing import Any

MAX_PENDING_BYTES = 64 << 10
"""Bytes beyond which nothing is joined: copying costs more than a system call."""


class JoinedWrites:
    """Collects writes until the event loop runs its next callbacks."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._pending: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send the bytes after those that are pending, soon."""
        if not self._pending:
            self._loop.call_soon(self.flush)
        self._pending.append(data)
        self._size += len(data)
        if self._size > MAX_PENDING_BYTES:
            self.flush()

    def write_eof(self) -> None:
        """Send the pending bytes, and tell the client that no more follow."""
        self.flush()
        self._transport.write_eof()

    def close(self) -> None:
        """Send the pending bytes, and close the connection."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Close the connection at once, without the pending bytes."""
        self._pending.clear()
        self._transport.abort()

    def flush(self) -> None:
        """Send the pending bytes."""
        if self._pending and not self._transport.is_closing():
            self._transport.writelines(self._pending)
        self._pending, self._size = [], 0
