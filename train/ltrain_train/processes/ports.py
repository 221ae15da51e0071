"""Ports of this machine: which are free, and whether a server listens at one."""

import atexit
import socket
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from random import sample

from ltrain_instrument.errors import LtrainError

PORTS = range(61_000, 65_536)
"""Ports above those that Linux assigns to outgoing connections, so that none of these takes the
port before the server does."""
CONNECT_TIMEOUT = 2.0
"""Seconds."""
MAX_RESERVED = 256
"""Ports that one process reserves; the oldest reservation ends first."""

_reserved: deque[socket.socket] = deque()


class NoFreePort(LtrainError, OSError):
    """Every port of `PORTS` is in use."""


def free_port(excluded: Collection[int] = ()) -> int:
    """Return a port of 127.0.0.1 that no server has, and that is not `excluded`.

    It is reserved for this process: `free_port` returns it to no other process, so that two
    servers that start at the same time do not get the same one.

    Raises:
        NoFreePort: when there is none.
    """
    for port in sample(PORTS, len(PORTS)):
        if port in excluded:
            continue
        with suppress(OSError):
            _reserve(port)
            with socket.create_server(("127.0.0.1", port)):
                return port
    raise NoFreePort(
        f"No port of this machine from {PORTS.start} to {PORTS.stop - 1} is free. End the programs "
        "that use them; `ss -ltn` lists them."
    )


def _reserve(port: int) -> None:
    """Bind a Unix socket that is named after the port; one process of this machine can.

    The name is in Linux's abstract namespace: it leaves no file, and ends with the process.
    """
    reservation = socket.socket(socket.AF_UNIX)
    try:
        reservation.bind(f"\0ltrain-port-{port}")
    except OSError:
        reservation.close()
        raise
    _reserved.append(reservation)
    if len(_reserved) > MAX_RESERVED:
        _reserved.popleft().close()


@atexit.register
def end_reservations() -> None:
    """End the reservations of this process."""
    while _reserved:
        _reserved.popleft().close()


def is_port_open(port: int) -> bool:
    """Return whether a server accepts connections at a port of 127.0.0.1."""
    try:
        socket.create_connection(("127.0.0.1", port), CONNECT_TIMEOUT).close()
    except OSError:
        return False
    return True
