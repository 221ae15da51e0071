"""Accept the connections of a server, which wait while this process can open no further file.

libuv closes them in that case: a client cannot tell that from a server that breaks off.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import uvicorn

LACKS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors after which the same connection may be accepted later."""
PAUSE = 0.05
"""Seconds after which a connection is accepted that found no free descriptor."""


class WaitingServer(uvicorn.Server):
    """Uvicorn on sockets that listen, whose clients wait if there is no free descriptor."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        connection: Any = self.config.http_protocol_class
        factory = partial(
            connection, config=self.config, server_state=self.server_state, app_state={}
        )
        self.servers = [
            Acceptor(listener, factory, self.config.ssl)  # type: ignore[misc]
            for listener in sockets or ()
        ]
        self.started = True


class Acceptor:
    """Accepts the connections of one socket; it has the methods of a server of asyncio."""

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener, self._protocol, self._tls = listener, protocol, tls
        self._opening = set[asyncio.Task[None]]()
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Accept no further connection, and close the socket."""
        if self._pause:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()

    async def wait_closed(self) -> None:
        """Return when each accepted connection is open, or has failed."""
        await asyncio.gather(*self._opening)

    def _resume(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """Accept one connection: the event loop serves those that are open before the next."""
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno not in LACKS:
                raise
            self._loop.remove_reader(self._listener)
            self._pause = self._loop.call_later(PAUSE, self._resume)
            return
        opening = self._loop.create_task(self._open(connection))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        with suppress(OSError):  # the client left, or sent no handshake of TLS
            await self._loop.connect_accepted_socket(self._protocol, connection, ssl=self._tls)
