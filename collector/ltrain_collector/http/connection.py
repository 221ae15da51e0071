"""HTTP connections with limits that uvicorn lacks: bytes of headers and open descriptors.

* The request line, headers and trailers of a request have at most 64 KiB together; more gets 431.
  They are counted before the parser collects them, which would block all other connections.
* A connection beyond the limit of descriptors gets 503 and is closed.
"""

import asyncio
from functools import partial
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ltrain_collector.http.descriptors import Descriptors
from ltrain_collector.http.refusals import RefusalCounts, RefusalReason
from ltrain_instrument.machine import MORE_FILES

MAX_HEAD_BYTES = 64 << 10
"""Bytes of the request line, headers and trailers together."""

LINE_OVERHEAD = 4
"""Bytes of a header line in addition to its name and value."""

LINGER_SECONDS = 2.0
"""Seconds in which a refused client can read the response: a connection that is closed with unread
bytes is reset, and the response is lost."""

RETRY_AFTER = 5
"""Seconds after which a client that was refused for lack of descriptors can retry."""

TOO_LONG = (
    f"The request line and headers exceed {MAX_HEAD_BYTES >> 10} KiB. Send fewer headers, and a "
    "long query in the body of a POST.\n"
)
FULL = (
    "Too many connections are open for this process's limit of open files. Try again, or close "
    f"idle ones. {MORE_FILES} where the process is started.\n"
)


def connection_factory(descriptors: Descriptors, refusals: RefusalCounts) -> Any:
    """Return the factory with which uvicorn creates connections."""
    return partial(Connection, descriptors=descriptors, refusals=refusals)


class Connection(HttpToolsProtocol):
    """A connection that refuses long headers, and is refused beyond the limit of descriptors."""

    def __init__(
        self, *args: Any, descriptors: Descriptors, refusals: RefusalCounts, **keywords: Any
    ) -> None:
        super().__init__(*args, **keywords)
        self._descriptors = descriptors
        self._refusals = refusals
        self._head = 0
        """Bytes of this request's line, headers and trailers that the parser has reported."""
        self._unparsed = 0
        """Bytes that the parser received since its last report."""
        self._full = self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._writes = JoinedWrites(transport, self.loop)
        super().connection_made(self._writes)  # type: ignore[arg-type]
        number = transport.get_extra_info("socket").fileno()
        if number < self._descriptors.served:
            return
        self._full = True
        if number < self._descriptors.answered:
            self.loop.call_later(LINGER_SECONDS, transport.close)
        else:
            self._refusals.add(RefusalReason.DESCRIPTORS)
            transport.abort()

    def eof_received(self) -> None:
        self._writes.flush()  # the event loop closes the connection next
        super().eof_received()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._full:
            self._refuse(RefusalReason.DESCRIPTORS, HTTPStatus.SERVICE_UNAVAILABLE, FULL)
            return
        if len(data) <= MAX_HEAD_BYTES:  # slicing would cost more than the whole check
            self._feed(data)
            return
        for at in range(0, len(data), MAX_HEAD_BYTES):
            if not (self._refused or self.transport.is_closing()):
                self._feed(data[at : at + MAX_HEAD_BYTES])

    def _feed(self, part: bytes) -> None:
        self._unparsed += len(part)
        super().data_received(part)
        if self._too_long or self._unparsed > MAX_HEAD_BYTES:
            self._refuse(
                RefusalReason.HEADERS, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, TOO_LONG
            )

    @property
    def _too_long(self) -> bool:
        return self._head > MAX_HEAD_BYTES

    def _refuse(self, reason: RefusalReason, status: HTTPStatus, sentence: str) -> None:
        """Send an error, then ignore further bytes until the connection is closed."""
        self._refused = True
        self._refusals.add(reason)
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()  # the response to an earlier request is being sent
            return
        self.transport.write(_error_response(status, sentence))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _count_head(self, size: int) -> bool:
        """Count bytes that the parser reports, and return whether the head is within its limit."""
        self._head, self._unparsed = self._head + size, 0
        return not self._too_long

    def on_message_begin(self) -> None:
        self._head = self._unparsed = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self._count_head(len(url)):
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._count_head(len(name) + len(value) + LINE_OVERHEAD):
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._count_head(0):
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._count_head(0):
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._count_head(0):
            super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: the request is served as one without an upgrade."""


def _error_response(status: HTTPStatus, sentence: str) -> bytes:
    body = sentence.encode()
    again = f"retry-after: {RETRY_AFTER}\r\n" if status is HTTPStatus.SERVICE_UNAVAILABLE else ""
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: text/plain\r\n"
        f"content-length: {len(body)}\r\n{again}connection: close\r\n\r\n"
    )
    return head.encode() + body


MAX_PENDING_BYTES = 64 << 10
"""Bytes beyond which nothing is joined: copying costs more than a system call."""


class JoinedWrites:
    """Collects writes until the event loop runs its next callbacks, and sends them with one call.

    Uvicorn writes the head of a response and its body apart, and the event loop sends each at once:
    the client wakes up twice, and the second call costs as much as the first.
    """

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
