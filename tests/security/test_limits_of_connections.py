"""A connection cannot block others with its headers, nor take the engine's descriptors."""

import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pytest
from tests.fake_vllm import FakeVllm
from tests.fork_server import LTRAIN
from tests.http_requests import ask, health
from tests.security.servers import Up, collector, gateway

KIB = 1 << 10
LIMIT = 64 * KIB
LOW = "512"
"""The limit of descriptors of a test's process."""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with collector(tmp_path_factory.mktemp("up") / "home") as running:
        yield running


@pytest.fixture(scope="module", params=["sql", "otlp", "gateway"])
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A port of each server."""
    if request.param != "gateway":
        yield getattr(request.getfixturevalue("up"), request.param)
        return
    home = tmp_path_factory.mktemp("gateway") / "home"
    with FakeVllm() as vllm, gateway(home, vllm.url) as found:
        yield found


def answer_to(port: int, *parts: bytes) -> bytes:
    """Send bytes and return all that comes back until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        try:
            for part in parts:
                client.sendall(part)
        except OSError:  # refused in the midst of it; what was answered can still be read
            pass
        found = b""
        try:
            while part := client.recv(1 << 16):
                found += part
        except ConnectionResetError:
            pass
        return found


BEGIN = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.mark.parametrize(
    "head",
    [
        [BEGIN, b"a: ", b"x" * (3 * LIMIT)],
        [BEGIN, b"x" * (3 * LIMIT)],
        [BEGIN, b"a: b\r\n" * (LIMIT // 6), b"\r\n"],
        [b"GET /?" + b"x" * LIMIT + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"],
        [b"GET /?", b"x" * (3 * LIMIT)],
        [b"\r\n" * LIMIT],
        [BEGIN, b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nb: ", b"x" * (3 * LIMIT)],
        [BEGIN, b"Transfer-Encoding: chunked\r\n\r\n1;", b"x" * (3 * LIMIT)],
    ],
    ids=["value", "name", "many", "url", "endless url", "empty lines", "trailer", "extension"],
)
def test_too_long_a_head_is_refused(port: int, head: list[bytes]) -> None:
    answer = answer_to(port, *head)
    if answer:  # of a request whose answer had begun, the connection is closed
        assert answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 4")), answer[:200]
    if head[0] is BEGIN and b"Transfer" not in head[1]:
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert b"connection: close" in answer and b"64 KiB" in answer
    assert ask(port, "GET", "/health").status in (200, 404)


def test_a_head_below_the_limit_is_read(up: Up) -> None:
    query = "SELECT+'" + "x" * (LIMIT - 2 * KIB) + "'"
    assert len(ask(up.sql, "GET", f"/?query={query}").body) == LIMIT - 2 * KIB + 1
    long = {f"x-{n}": "y" * KIB for n in range(60)}
    assert ask(up.otlp, "GET", "/health", headers=long).status == 200
    # each request of a connection has a limit of its own, and a body has none of this
    body = b"SELECT '" + b"x" * (200 * KIB) + b"'"
    once = BEGIN + b"content-length: %d\r\nx: %s\r\n\r\n" % (len(body), b"y" * (40 * KIB)) + body
    with socket.create_connection(("127.0.0.1", up.sql), timeout=60) as client:
        for _ in range(3):
            client.sendall(once)
            found = b""
            while b"\r\n0\r\n\r\n" not in found:
                part = client.recv(1 << 20)
                assert part, found[:500]
                found += part
            assert found.startswith(b"HTTP/1.1 200 ")


def test_a_head_of_many_megabytes_blocks_nobody(up: Up) -> None:
    before = up.blocked()["headers"]
    stopped, slowest = threading.Event(), [0.0]

    def others() -> None:
        while not stopped.is_set():
            begun = time.monotonic()
            assert ask(up.sql, "GET", "/ping").status == 200
            slowest[0] = max(slowest[0], time.monotonic() - begun)

    thread = threading.Thread(target=others)
    thread.start()
    try:
        for _ in range(3):
            assert answer_to(up.otlp, BEGIN, b"a: ", *[b"x" * (1 << 20)] * 64)[9:12] in (
                b"431",
                b"",
            )
    finally:
        stopped.set()
        thread.join()
    assert up.blocked()["headers"] == before + 3
    assert slowest[0] < 3.0


def test_grpc_has_a_limit_of_metadata(up: Up) -> None:
    method = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
    with grpc.insecure_channel(f"127.0.0.1:{up.grpc}") as channel:
        export = channel.unary_unary(method)
        assert export(b"", timeout=60, metadata=(("a", "x" * 40 * KIB),)) == b""
        with pytest.raises(grpc.RpcError) as refused:
            export(b"", timeout=60, metadata=(("a", "x" * 80 * KIB),))
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.RpcError) as refused:
            export(b"", timeout=60, metadata=(("origin", "http://evil.example"),))
        assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED


def test_beyond_the_descriptors_clients_get_503_and_the_engine_works(
    tmp_path: Path,
) -> None:
    limited = ("sh", "-c", f'ulimit -n {LOW}; exec "$@"', "sh")
    with collector(tmp_path / "home", within=limited) as up, ExitStack() as open_ones:
        first = open_ones.enter_context(_Client(up.sql))
        refusals = 0
        for number in range(int(LOW)):
            one = open_ones.enter_context(_Client(up.sql if number % 2 else up.otlp))
            refusals += one.ask().startswith(b"HTTP/1.1 503 ")
        assert refusals > 20
        for _ in range(20):  # the engine has what it needs
            assert first.ask(b"SELECT count() FROM otel.spans").endswith(b"\r\n\r\n")
        answer = open_ones.enter_context(_Client(up.otlp)).ask()
        assert not answer or (b" 503 " in answer and b"retry-after: 5" in answer)
        open_ones.close()
        assert _eventually(lambda: ask(up.otlp, "GET", "/health").status == 200)
        assert health(up.otlp)["status"] == "ok"
        assert up.blocked()["descriptors"] > 20


def _eventually(condition: object) -> bool:
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        with suppress(ConnectionError):  # a refusal may reset the connection before it is read
            if callable(condition) and condition():
                return True
        time.sleep(0.1)
    return False


class _Client:
    """A connection that stays open."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)

    def ask(self, sql: bytes = b"") -> bytes:
        """Send one request; '' where the connection was closed without an answer."""
        head = b"POST /ping HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        if sql:
            head = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        try:
            self._socket.sendall(head + b"content-length: %d\r\n\r\n" % len(sql) + sql)
            found = b""
            while not (found.endswith(b"0\r\n\r\n") or (found and not sql)):
                part = self._socket.recv(1 << 16)
                if not part:
                    break
                found += part
            return found
        except OSError:
            return b""

    def __enter__(self) -> "_Client":
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()


@pytest.mark.parametrize("limit", [40, 127])
@pytest.mark.parametrize("argv", [("up", "--dir"), ("store", "migrate", "--store")])
def test_too_few_descriptors_are_reported_before_a_store_is_made(
    tmp_path: Path, limit: int, argv: tuple[str, ...]
) -> None:
    where = tmp_path / "store" if argv[0] == "up" else f"chdb://{tmp_path}/store"
    command = ("sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", LTRAIN, *argv, where)
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"ltrain: This process may have {limit} files open, and a store")
    assert "`ulimit -n 65536`" in " ".join(done.stderr.split())
    assert not (tmp_path / "store").exists()
