"""Clients of a server without free descriptors wait for one."""

import resource
import socket
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psutil
import pytest

from ltrain_collector.http import open_listener

REQUEST = b"HEAD / HTTP/1.1\r\nhost: localhost\r\n\r\n"
OK = b"HTTP/1.1 200 OK"
SERVER = """
import os, socket, sys, uvicorn
from ltrain_collector.http import WaitingServer

async def app(scope, receive, send):
    while not held or held[-1] < 64:
        held.append(os.dup(0))  # no free number remains below the spare descriptor of libuv
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": b"ok"})

held = []
config = uvicorn.Config(app, lifespan="off", log_level="warning", loop=sys.argv[2])
WaitingServer(config).run(sockets=[socket.socket(fileno=int(sys.argv[1]))])
"""


@pytest.fixture(params=["uvloop", "asyncio"])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[psutil.Process, int]]:
    """Yield the process and the port of a server."""
    with open_listener("127.0.0.1", 0) as listener:
        command = [sys.executable, "-c", SERVER, str(listener.fileno()), request.param]
        process = psutil.Popen(command, pass_fds=[listener.fileno()])
        port = listener.getsockname()[1]
    try:
        yield process, port
    finally:
        process.terminate()
        assert process.wait(20) in (0, -15)


def test_a_connection_waits_for_a_free_descriptor(server: tuple[psutil.Process, int]) -> None:
    process, address = server[0], ("127.0.0.1", server[1])
    before = process.rlimit(resource.RLIMIT_NOFILE)
    with socket.create_connection(address, timeout=20) as first:
        assert ask(first).startswith(OK)
        process.rlimit(resource.RLIMIT_NOFILE, (lowest_free(process), before[1]))
        with socket.create_connection(address, timeout=0.5) as second:
            with pytest.raises(TimeoutError):
                ask(second)
            assert ask(first).startswith(OK)
            process.rlimit(resource.RLIMIT_NOFILE, before)
            second.settimeout(20)
            assert second.recv(1000).startswith(OK)


def ask(client: socket.socket) -> bytes:
    """Return the first bytes of a response."""
    client.sendall(REQUEST)
    return client.recv(1000)


def lowest_free(process: psutil.Process) -> int:
    """Return the number of a process's next descriptor."""
    used = {int(each.name) for each in Path(f"/proc/{process.pid}/fd").iterdir()}
    return next(number for number in count() if number not in used)
