"""Sockets by which a sandbox without a network reaches certain ports of the host."""

import asyncio
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ltrain_instrument.errors import BadSetting
from ltrain_instrument.machine import LOOPBACK_NAMES

CHUNK = 65536
"""Bytes that are read at a time."""
PORTS = {"http": 80, "https": 443, "postgresql": 5432, "redis": 6379, "mysql": 3306}
"""The port of an address that has none, by its scheme."""
HIGH = 20_000
"""Added to ports below 1024."""


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """A host and a port that attempts may reach."""

    host: str
    port: int

    @classmethod
    def from_address(cls, address: str) -> "Target | None":
        """Return the target of a URL or of `host:port`; None if it names no port."""
        parts = urlsplit(address if "://" in address else f"//{address}")
        try:
            port = parts.port or PORTS.get(parts.scheme)
        except ValueError as error:
            raise BadSetting(f"'{address}' has a bad port: {error}.") from error
        return cls(parts.hostname, port) if parts.hostname and port else None

    @property
    def inner_port(self) -> int:
        """The port in a sandbox, where no process may listen at a port below 1024."""
        return self.port + HIGH if self.port < 1024 else self.port

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine's loopback."""
        return self.host in LOOPBACK_NAMES


def inner_addresses(targets: Iterable[Target]) -> dict[Target, str]:
    """Return the loopback address of each target in a sandbox; each other host has one of its own.

    Raises:
        BadSetting: when a target is named by an address that is not loopback.
    """
    others = sorted({target.host for target in targets if not target.is_local})
    for host in others:
        if ":" in host or host.replace(".", "").isdecimal():
            raise BadSetting(
                f"A sandbox cannot reach {host} by its number, because it has no network. Use the "
                "name of the host in the URL."
            )
    numbers = {host: f"127.0.0.{number}" for number, host in enumerate(others, 2)}
    return {target: numbers.get(target.host, "127.0.0.1") for target in targets}


def inner_address(address: str) -> str:
    """Return how an attempt in a sandbox names the target of an address."""
    target = Target.from_address(address)
    if target is None or target.inner_port == target.port:
        return address
    scheme, separator, rest = address.rpartition("://")
    netloc, slash, path = rest.partition("/")
    user, at, host = netloc.rpartition("@")
    name = host.removesuffix(f":{target.port}")
    return f"{scheme}{separator}{user}{at}{name}:{target.inner_port}{slash}{path}"


class Bridge:
    """Owns a socket for each target in a folder, and forwards its connections; thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sockets: dict[Target, Path] = {}
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        """Those that forward a connection."""
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="bridge", daemon=True)
        self._thread.start()

    def open(self, target: Target) -> Path:
        """Return the socket that leads to a target."""
        with self._lock:
            if target not in self._sockets:
                path = self._folder / f"{len(self._sockets)}.sock"
                asyncio.run_coroutine_threadsafe(self._listen(target, path), self._loop).result()
                self._sockets[target] = path
            return self._sockets[target]

    def close(self) -> None:
        """Close every connection and end the thread."""
        asyncio.run_coroutine_threadsafe(self._end_tasks(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self, target: Target, path: Path) -> None:
        def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(_forward(reader, writer, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: writer.close())  # also of one that never began

        self._servers.append(await asyncio.start_unix_server(forward, path, limit=CHUNK))

    async def _end_tasks(self) -> None:
        # asyncio would leave a connection open that it accepts while its server is closed
        while accepting := asyncio.all_tasks() - self._tasks - {asyncio.current_task()}:
            await asyncio.wait(accepting)
        for server in self._servers:
            server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: Target
) -> None:
    with suppress(OSError):
        to_reader, to_writer = await asyncio.open_connection(target.host, target.port, limit=CHUNK)
        try:
            await asyncio.gather(_pump(reader, to_writer), _pump(to_reader, writer))
        finally:
            to_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(CHUNK):
        writer.write(chunk)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
