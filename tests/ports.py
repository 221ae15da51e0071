"""Ports of this machine that nothing listens on."""

import socket


def free_ports(count: int) -> list[int]:
    """Return the numbers of `count` ports, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
