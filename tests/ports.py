"""Ports of this machine that nothing listens on."""

import socket
from contextlib import suppress
from random import sample

RANGE = range(61_000, 65_536)
"""Ports above those that Linux assigns to outgoing connections: between the choice of a port and
the start of its server, no other test's connection takes it."""


def free_ports(count: int) -> list[int]:
    """Return the numbers of `count` ports, all different."""
    free = []
    for port in sample(RANGE, len(RANGE)):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            free.append(port)
        if len(free) == count:
            return free
    raise OSError(f"Fewer than {count} ports from {RANGE.start} to {RANGE.stop - 1} are free.")
