"""Ports for servers: free, and reserved for the process that asked."""

import socket
import subprocess
import sys
from contextlib import closing

import pytest

from ltrain_train.processes import NoFreePort, free_port, ports

CHOOSE = "from ltrain_train.processes import free_port, ports; ports.PORTS = range({}, {}); "
PRINT = "print(free_port())"


def choose_elsewhere(port: int) -> subprocess.CompletedProcess[str]:
    """Call `free_port` in another process, with this port alone to choose from."""
    code = CHOOSE.format(port, port + 1) + PRINT
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_a_port_is_reserved_until_its_process_ends() -> None:
    port = free_port()
    assert "NoFreePort" in choose_elsewhere(port).stderr
    ports.end_reservations()
    assert choose_elsewhere(port).stdout == f"{port}\n"
    assert choose_elsewhere(port).stdout == f"{port}\n"


def test_a_reserved_port_is_free_for_its_server() -> None:
    with closing(socket.create_server(("127.0.0.1", free_port()))):
        pass


def test_the_oldest_reservation_ends_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "MAX_RESERVED", 1)
    ports.end_reservations()
    first, second = free_port(), free_port()
    assert "NoFreePort" in choose_elsewhere(second).stderr
    assert choose_elsewhere(first).stdout == f"{first}\n"


def test_no_port_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(ports, "PORTS", range(port, port + 1))
        with pytest.raises(NoFreePort, match=f"from {port} to {port} is free"):
            free_port()
