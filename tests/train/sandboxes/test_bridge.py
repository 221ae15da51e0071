"""The sockets of a sandbox: addresses inside, and connections that are forwarded."""

import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread

import pytest

from ltrain_instrument.errors import BadSetting
from ltrain_train.sandboxes.bridge import Bridge, Target, inner_address, inner_addresses

TIMEOUT = 30.0
LARGE = 5 << 20


@pytest.fixture
def bridge(tmp_path: Path) -> Iterator[Bridge]:
    with closing(Bridge(tmp_path)) as bridge:
        yield bridge


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that answers a whole request with its bytes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:  # the server is closed
                    return
                with connection:
                    connection.sendall(read_all(connection))

        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join(TIMEOUT)


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(TIMEOUT)
    connection.connect(str(path))
    return connection


@pytest.mark.parametrize(
    ("address", "target", "inner"),
    [
        ("http://127.0.0.1:8000/v1", ("127.0.0.1", 8000), "http://127.0.0.1:8000/v1"),
        ("http://localhost/v1", ("localhost", 80), "http://localhost:20080/v1"),
        ("https://db.internal/x?y=1", ("db.internal", 443), "https://db.internal:20443/x?y=1"),
        ("postgresql://me:pw@db/x", ("db", 5432), "postgresql://me:pw@db/x"),
        ("redis://u:p@db:700", ("db", 700), "redis://u:p@db:20700"),
        ("db:6379", ("db", 6379), "db:6379"),
        ("/run/socket", None, "/run/socket"),
        ("a text", None, "a text"),
    ],
)
def test_an_address_has_a_place_in_the_sandbox(
    address: str, target: tuple[str, int] | None, inner: str
) -> None:
    assert Target.from_address(address) == (Target(*target) if target else None)
    assert inner_address(address) == inner


def test_each_host_has_an_address_of_its_own() -> None:
    targets = [Target("127.0.0.1", 8000), Target("b", 1), Target("a", 1), Target("a", 2)]
    assert list(inner_addresses(targets).values()) == [
        *("127.0.0.1", "127.0.0.3", "127.0.0.2", "127.0.0.2")
    ]
    with pytest.raises(BadSetting, match=r"cannot reach 10\.0\.0\.5 by its number"):
        inner_addresses([Target("10.0.0.5", 80)])
    with pytest.raises(BadSetting, match="has a bad port"):
        Target.from_address("http://a:999999")


def test_a_connection_is_forwarded_to_its_end(bridge: Bridge, echo: int) -> None:
    target = Target("127.0.0.1", echo)
    assert bridge.open(target) == bridge.open(target) != bridge.open(Target("127.0.0.1", 1))
    for size in (0, 1, LARGE):
        with connect(bridge.open(target)) as connection:
            sent = Thread(target=send_all, args=(connection, bytes(size)))
            sent.start()
            assert len(read_all(connection)) == size
            sent.join(TIMEOUT)


def send_all(connection: socket.socket, data: bytes) -> None:
    connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)


def test_a_target_that_does_not_listen_ends_the_connection(bridge: Bridge) -> None:
    with connect(bridge.open(Target("127.0.0.1", 1))) as connection:
        assert connection.recv(1) == b""


def test_the_end_of_the_bridge_ends_its_connections(tmp_path: Path, echo: int) -> None:
    bridge = Bridge(tmp_path)
    path = bridge.open(Target("127.0.0.1", echo))
    with connect(path) as connection:
        connection.sendall(b"half of a request")
        bridge.close()
        with suppress(ConnectionResetError):  # what the agent had sent is not read any more
            assert connection.recv(1) == b""
    with socket.socket(socket.AF_UNIX) as connection, pytest.raises(OSError):
        connection.connect(str(path))
