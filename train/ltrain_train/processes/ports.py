"""Ports of this machine: which are free, and whether a server listens at one."""

import socket
from collections.abc import Collection
from contextlib import suppress
from random import sample

from ltrain_instrument.errors import LtrainError

PORTS = range(61_000, 65_536)
"""Ports above those that Linux assigns to outgoing connections, so that none of these takes the
port before the server does."""
CONNECT_TIMEOUT = 2.0
"""Seconds."""


class NoFreePort(LtrainError, OSError):
    """Every port of `PORTS` is in use."""


def free_port(excluded: Collection[int] = ()) -> int:
    """Return a port of 127.0.0.1 that no server has, and that is not `excluded`.

    Raises:
        NoFreePort: when there is none.
    """
    for port in sample(PORTS, len(PORTS)):
        if port in excluded:
            continue
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise NoFreePort(
        f"No port of this machine from {PORTS.start} to {PORTS.stop - 1} is free. End the programs "
        "that use them; `ss -ltn` lists them."
    )


def is_port_open(port: int) -> bool:
    """Return whether a server accepts connections at a port of 127.0.0.1."""
    try:
        socket.create_connection(("127.0.0.1", port), CONNECT_TIMEOUT).close()
    except OSError:
        return False
    return True
