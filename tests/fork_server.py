"""`ltrain` as a fork of a process that has imported it, which starts in a tenth of the time.

`ltrain_command()` returns an executable that behaves as `.venv/bin/ltrain` does: arguments, folder,
environment, stdin, stdout, stderr, exit status and signals are those of a process of its own. It is
for tests of what a command does. A test of how its process starts, of what it imports, or of its
process id needs the real one, `LTRAIN`; each command has such a test.

The executable connects to a server, one for each process of pytest, and sends its descriptors. The
server forks; the child runs the command. Signals of the executable reach the child, and the death
of either ends the other. chDB's library starts threads when it is imported, which a fork does not
have, so that the server does not import it.
"""

from __future__ import annotations

import array
import atexit
import gc
import marshal
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

LTRAIN = Path(sys.executable).with_name("ltrain")
"""The real command."""
IMPORTED = (
    *("jinja2", "jsonschema", "polars", "pyarrow", "pydantic", "starlette.applications"),
    *("ltrain.cli", "ltrain_collector.query_output"),
    *("ltrain_transforms.recipe.recipe", "ltrain_transforms.datasets.build"),
    *("ltrain_transforms.show.pages.page", "ltrain_transforms.show.rollout"),
    *("clickhouse_connect", "ltrain_collector.ingest.commit", "ltrain_collector.query.execution"),
    *("ltrain_collector.server.otlp_grpc", "ltrain_collector.server.otlp_http"),
    "ltrain_train.gateway.server",
)
"""What the server imports: no module that reads the environment, and not chDB."""
CLIENT = """#!{python} -IS
import os, sys
own = {{name: text for name, text in os.environ.items() if name.startswith("PYTHON")}}
own.pop("PYTHONUNBUFFERED", None)
if own != {variables!r}:
    os.execv({real!r}, sys.argv)
import marshal
import _signal as signal, _socket as socket  # without enum, half of the time of this process
server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
server.connect({address!r})
umask = os.umask(0)
request = [sys.argv[1:], os.getcwd(), dict(os.environ), os.getpgrp(), umask]
body = marshal.dumps(request)
descriptors = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)]
server.sendmsg([len(body).to_bytes(8, "big")], rights)
server.sendall(body)
child = int(server.recv(16))
with open("/proc/self/comm", "w") as name:
    name.write(f"fork{{child}}")
def forward(number, frame):
    try:
        os.kill(child, number)
    except ProcessLookupError:
        pass
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, forward)
for number in range(3):
    os.close(number)
status = int(server.recv(16) or 255 << 8)
if os.WIFSIGNALED(status):
    if os.WTERMSIG(status) != signal.SIGKILL:
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
    os.kill(os.getpid(), os.WTERMSIG(status))
os._exit(os.waitstatus_to_exitcode(status))
"""


@cache
def ltrain_command() -> str:
    """Start the server of this process, and return the path of its executable."""
    folder = Path(tempfile.mkdtemp(prefix="lt-"))
    address = str(folder / "socket")
    executable = folder / "ltrain"
    variables = {name: text for name, text in os.environ.items() if name.startswith("PYTHON")}
    variables.pop("PYTHONUNBUFFERED", None)
    executable.write_text(
        CLIENT.format(python=sys.executable, address=address, real=str(LTRAIN), variables=variables)
    )
    executable.chmod(0o700)
    server = subprocess.Popen(
        [sys.executable, __file__, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    atexit.register(server.kill)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    return str(executable)


def forked(pid: int) -> int:
    """Return the process id of the command that the executable `pid` stands for, or `pid`."""
    name = Path(f"/proc/{pid}/comm").read_text().strip()
    return int(name.removeprefix("fork")) if name.startswith("fork") else pid


def kill(process: subprocess.Popen[Any], number: int = signal.SIGKILL) -> None:
    """Send a signal to the command of a process, which has ended when the process ends."""
    if process.poll() is None:
        os.kill(forked(process.pid), number)


@dataclass(frozen=True)
class Request:
    """A command, and what its process inherits."""

    arguments: list[str]
    folder: str
    environ: dict[str, str]
    group: int
    umask: int
    descriptors: tuple[int, ...]

    @classmethod
    def receive(cls, client: socket.socket) -> Request:
        """Read a client's request.

        Raises:
            ConnectionError: the client was killed before it had sent all of it.
        """
        header, rights, _, _ = client.recvmsg(8, socket.CMSG_SPACE(12))
        if not rights:
            raise ConnectionResetError
        descriptors = array.array("i")
        descriptors.frombytes(rights[0][2])
        body = b""
        while len(body) < int.from_bytes(header, "big"):
            if not (part := client.recv(1 << 16)):
                for descriptor in descriptors:
                    os.close(descriptor)
                raise ConnectionResetError
            body += part
        arguments, folder, environ, group, umask = marshal.loads(body)
        return cls(arguments, folder, environ, group, umask, tuple(descriptors))

    def inherit(self) -> None:
        """Make this process what the client's would be."""
        for number, descriptor in enumerate(self.descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        with suppress(PermissionError):  # the client has a session of its own
            os.setpgid(0, self.group)
        os.umask(self.umask)
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environ)
        sys.argv = [str(LTRAIN), *self.arguments]
        sys.path[0] = str(LTRAIN.parent)
        sys.stdin = os.fdopen(0, closefd=False)
        by_line = os.isatty(1) or "PYTHONUNBUFFERED" in self.environ
        sys.stdout = os.fdopen(1, "w", 1 if by_line else -1, closefd=False)
        sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)


class Server:
    """Forks a child for each client, and tells the client its exit status."""

    def __init__(self, address: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(64)
        self._events = selectors.DefaultSelector()
        self._events.register(self._listener, selectors.EVENT_READ)
        self._events.register(0, selectors.EVENT_READ)
        self._children: dict[int, tuple[int, socket.socket]] = {}
        """Process id and client, by the descriptor that is readable when the child has ended."""

    def serve(self) -> Request:
        """Fork children until pytest has ended; return in each child the request that it is of."""
        while True:
            for key, _ in self._events.select():
                if self._events.get_map().get(key.fd) != key:
                    continue  # a client and its child were killed at once, and this is the second
                if key.fd == 0:
                    self._end()
                elif key.fileobj is self._listener:
                    client, _ = self._listener.accept()
                    try:
                        request = Request.receive(client)
                    except ConnectionError:
                        client.close()
                        continue
                    if self._fork(client, request):
                        return request
                elif key.fd in self._children:
                    self._report(key.fd)
                else:  # the client was killed
                    os.kill(key.data, signal.SIGKILL)
                    self._events.unregister(key.fileobj)

    def _fork(self, client: socket.socket, request: Request) -> bool:
        pid = os.fork()
        if pid == 0:
            for _, other in self._children.values():
                other.close()
            client.close()
            self._listener.close()
            self._events.close()
            return True
        for descriptor in request.descriptors:
            os.close(descriptor)
        with suppress(ConnectionError):  # the client was killed: its socket is readable
            client.send(_field(pid))
        ended = os.pidfd_open(pid)
        self._children[ended] = (pid, client)
        self._events.register(ended, selectors.EVENT_READ)
        self._events.register(client, selectors.EVENT_READ, pid)
        return False

    def _report(self, ended: int) -> None:
        pid, client = self._children.pop(ended)
        _, status = os.waitpid(pid, 0)
        with suppress(OSError):
            client.send(_field(status))
        for each in (ended, client):
            with suppress(KeyError):
                self._events.unregister(each)
        os.close(ended)
        client.close()

    def _end(self) -> NoReturn:
        for pid, _ in self._children.values():
            os.kill(pid, signal.SIGKILL)
        sys.exit()


def _field(number: int) -> bytes:
    """Return a number as the client receives it: two that were sent at once stay apart."""
    return str(number).encode().ljust(16)


def main(address: str) -> None:
    for name in IMPORTED:
        import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a child would copy the pages of every object
    server = Server(address)
    print("ready", flush=True)
    request = server.serve()
    request.inherit()
    _end(_run())


def _run() -> int:
    """Run the command, and return its exit status; an error ends the process as any other."""
    from ltrain.cli import main as run

    try:
        run()
    except SystemExit as exit:
        if not isinstance(exit.code, int | None):
            raise
        return exit.code or 0
    return 0


def _end(status: int) -> NoReturn:
    """Exit after what Python does before it takes the modules apart.

    That writes to every object, so that the kernel copies the memory of the server: three quarters
    of the time of a short command.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError):
        sys.stdout.flush()
        os._exit(status & 0xFF)
    sys.exit(status)  # nobody reads the output


if __name__ == "__main__":
    main(*sys.argv[1:])
