"""Writes are sent together, in order, and before the connection ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from ltrain_collector.http.connection import MAX_PENDING_BYTES, JoinedWrites

LARGE = b"x" * MAX_PENDING_BYTES


async def parts_received(use: Callable[[JoinedWrites], object]) -> list[bytes]:
    """Return what the other end of a connection receives, by the turns of the event loop."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    parts: list[bytes] = []

    def receive() -> None:
        try:
            parts.append(theirs.recv(1 << 20))
        except BlockingIOError:
            parts.append(b"nothing")
        except ConnectionResetError:
            parts.append(b"reset")

    use(JoinedWrites(transport, loop))
    receive()
    await asyncio.sleep(0)
    receive()
    await asyncio.sleep(0)
    receive()
    transport.abort()
    theirs.close()
    return parts


def write_twice(transport: JoinedWrites) -> None:
    transport.write(b"head ")
    transport.write(b"body")


def write_and_close(transport: JoinedWrites) -> None:
    write_twice(transport)
    transport.close()


def write_and_end(transport: JoinedWrites) -> None:
    write_twice(transport)
    transport.write_eof()


def write_and_abort(transport: JoinedWrites) -> None:
    write_twice(transport)
    transport.abort()
    transport.write(b"late")


def write_large(transport: JoinedWrites) -> None:
    transport.write(b"head ")
    transport.write(LARGE)
    transport.write(b"rest")


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (write_twice, [b"nothing", b"head body", b"nothing"]),
        (write_and_close, [b"head body", b"", b""]),
        (write_and_end, [b"head body", b"", b""]),
        (write_and_abort, [b"nothing", b"", b""]),
        (write_large, [b"head " + LARGE, b"rest", b"nothing"]),
    ],
)
def test_what_the_other_end_receives(
    use: Callable[[JoinedWrites], object], expected: list[bytes]
) -> None:
    assert asyncio.run(parts_received(use)) == expected


def test_other_methods_are_those_of_the_transport() -> None:
    async def name() -> bool:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
        joined = JoinedWrites(transport, loop)
        found = joined.get_extra_info("socket") is transport.get_extra_info("socket")
        joined.abort()
        theirs.close()
        return found

    assert asyncio.run(name())
