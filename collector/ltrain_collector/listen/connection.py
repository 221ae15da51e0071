"""One HTTP connection under limits that uvicorn does not have: header bytes and descriptors.

* The request line, the headers and the trailers of a request have 64 KiB in all; more gets 431.
  They are counted before the parser gathers them, which would hold up every other connection.
* A connection beyond the process's descriptors gets 503 and is closed.
"""

import asyncio
from functools import partial
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ltrain_collector.listen.descriptors import Descriptors
from ltrain_collector.listen.refusals import Reason, Refusals

HEAD = 64 << 10
"""Bytes of a request's line, headers and trailers together."""

LINE = 4
"""Bytes of a header line beside its name and its value."""

LINGER = 2.0
"""Seconds in which a refused client may read why: a connection that is closed while bytes of it are
unread is reset, and the answer lost."""

AGAIN = 5
"""Seconds after which a client that found no descriptor may try again."""

TOO_LONG = (
    f"The request's line and headers have more than {HEAD >> 10} KiB: send fewer, and a long query "
    "in the body of a POST.\n"
)
FULL = (
    "Too many connections are open for this process's limit of descriptors: try again, close idle "
    "ones, or raise the limit (`ulimit -n`).\n"
)


def protocol(descriptors: Descriptors, refusals: Refusals) -> Any:
    """Return what uvicorn makes its connections with."""
    return partial(Connection, descriptors=descriptors, refusals=refusals)


class Connection(HttpToolsProtocol):
    """A connection that refuses too long a head, and itself where there are too many."""

    def __init__(
        self, *args: Any, descriptors: Descriptors, refusals: Refusals, **named: Any
    ) -> None:
        super().__init__(*args, **named)
        self._descriptors = descriptors
        self._refusals = refusals
        self._head = 0
        """Bytes of this request's line, headers and trailers that the parser has handed over."""
        self._kept = 0
        """Bytes that the parser took since it last handed anything over."""
        self._full = self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        number = transport.get_extra_info("socket").fileno()
        if number < self._descriptors.served:
            return
        self._full = True
        if number < self._descriptors.answered:
            self.loop.call_later(LINGER, transport.close)
        else:
            self._refusals.add(Reason.DESCRIPTORS)
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._full:
            self._refuse(Reason.DESCRIPTORS, HTTPStatus.SERVICE_UNAVAILABLE, FULL)
            return
        if len(data) <= HEAD:  # a view of it would cost more than the whole check
            self._feed(data)
            return
        for at in range(0, len(data), HEAD):
            if not (self._refused or self.transport.is_closing()):
                self._feed(data[at : at + HEAD])

    def _feed(self, part: bytes) -> None:
        self._kept += len(part)
        super().data_received(part)
        if self._too_long or self._kept > HEAD:
            self._refuse(Reason.HEADERS, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, TOO_LONG)

    @property
    def _too_long(self) -> bool:
        return self._head > HEAD

    def _refuse(self, reason: Reason, status: HTTPStatus, sentence: str) -> None:
        """Answer, then read on for a while without looking at it."""
        self._refused = True
        self._refusals.add(reason)
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()  # an earlier request of this connection is being answered
            return
        self.transport.write(_answer(status, sentence))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER, self.transport.close)

    def _within(self, size: int) -> bool:
        """Count what the parser hands over; nothing of a head that is too long goes further."""
        self._head, self._kept = self._head + size, 0
        return not self._too_long

    def on_message_begin(self) -> None:
        self._head = self._kept = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self._within(len(url)):
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._within(len(name) + len(value) + LINE):
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._within(0):
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._within(0):
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._within(0):
            super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: the request is answered as one without an upgrade."""


def _answer(status: HTTPStatus, sentence: str) -> bytes:
    body = sentence.encode()
    again = f"retry-after: {AGAIN}\r\n" if status is HTTPStatus.SERVICE_UNAVAILABLE else ""
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: text/plain\r\n"
        f"content-length: {len(body)}\r\n{again}connection: close\r\n\r\n"
    )
    return head.encode() + body
