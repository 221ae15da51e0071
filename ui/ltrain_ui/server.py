"""Serve the pages on this machine, until ctrl-C."""

import socket

import uvicorn

from ltrain_collector.http import bind_port, listener_address
from ltrain_ui.app import make_app
from ltrain_ui.sessions import Sessions
from ltrain_ui.sources import Sources

HOST = "127.0.0.1"
"""The address, which other machines cannot reach."""
SHUTDOWN_SECONDS = 3
"""Seconds that open requests get to finish after ctrl-C."""


class _Server(uvicorn.Server):
    """Prints the link when the pages can be opened, and ends streams before it waits for them."""

    def __init__(self, config: uvicorn.Config, link: str, sources: Sources) -> None:
        super().__init__(config)
        self._link = link
        self._sources = sources

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(f"ltrain: open {self._link}", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._sources.stop()
        await super().shutdown(sockets)


def serve(sources: Sources, port: int) -> None:
    """Serve pages on what is in `sources` until SIGTERM or SIGINT.

    Args:
        port: 0 for any free port.

    Raises:
        BadPort: this process cannot listen on the port.
        PortTaken: another process listens on it.
    """
    with bind_port(HOST, port, "--port") as listener:
        address, sessions = listener_address(listener), Sessions()

        def link() -> str:
            return f"http://{address}/#{sessions.code}"

        def announce() -> None:
            print(f"ltrain: signed in; for another browser: {link()}", flush=True)

        config = uvicorn.Config(
            make_app(sources, sessions, announce),
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        _Server(config, link(), sources).run(sockets=[listener])
