"""Serve the pages on this machine, or with keys to others, until ctrl-C."""

import os
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import uvicorn

from ltrain_collector.access import Keys
from ltrain_collector.errors import OpenToAll
from ltrain_collector.http import (
    RefusalCounts,
    Tls,
    WaitingServer,
    bind_port,
    check_tls,
    listener_address,
    local_url,
    server_config,
)
from ltrain_instrument import addresses
from ltrain_instrument.machine import is_loopback
from ltrain_ui.app import make_app
from ltrain_ui.sessions import Sessions
from ltrain_ui.sign_in import CodeSignIn, KeySignIn, SignIn
from ltrain_ui.sources import Sources

SHUTDOWN_SECONDS = 3
"""Seconds that open requests get to finish after ctrl-C."""
CLEAR_TEXT = (
    "ltrain: keys and pages are sent in clear text. Use --tls-cert and --tls-key, or a proxy with "
    "TLS on this machine."
)


class _Server(WaitingServer):
    """Prints the link when the pages can be opened, and ends streams before it waits for them."""

    def __init__(
        self, config: uvicorn.Config, announce: Callable[[], None], sources: Sources
    ) -> None:
        super().__init__(config)
        self._announce = announce
        self._sources = sources

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._sources.stop()
        await super().shutdown(sockets)


def serve(
    sources: Sources, host: str, port: int, tls: Tls | None = None, hosts: Iterable[str] = ()
) -> None:
    """Serve pages on what is in `sources` until SIGTERM or SIGINT.

    Args:
        host: the address to listen on; beyond this machine a key of the store signs in.
        port: 0 for any free port.
        hosts: allowed values of `Host`, in addition to this machine's names and `host`.

    Raises:
        BadPort: this process cannot listen on the port.
        BadTls: the files of `tls` are no certificate with its key.
        OpenToAll: other machines could open the pages, and the store has no keys.
        PortTaken: another process listens on it.
    """
    keys = None if is_loopback(host) else _keys(sources, host)
    check_tls(tls)
    with bind_port(host, port, "--port") as listener:
        address = f"{'https' if tls else 'http'}://{listener_address(listener)}/"

        def announce(before: str = "open") -> None:
            code = f"#{way.code}" if isinstance(way, CodeSignIn) else ""
            print(f"ltrain: {before} {address}{code}", flush=True)

        way: SignIn
        if keys is None:
            way = CodeSignIn(lambda: announce("the link before is an hour old; now open"))
        else:
            way = KeySignIn(keys)
            if tls is None:
                print(CLEAR_TEXT, file=sys.stderr, flush=True)
        app = make_app(sources, Sessions(), way, secure=tls is not None, hosts=(host, *hosts))
        config = server_config(app, tls, RefusalCounts(), SHUTDOWN_SECONDS)
        url = local_url(host, listener.getsockname()[1], tls, hosts)
        with _announced(sources.home, url):
            _Server(config, announce, sources).run(sockets=[listener])


def _announced(home: Path, url: str) -> AbstractContextManager[None]:
    """Announce the pages in their home; a home that cannot be written is only read."""
    if not os.access(home, os.W_OK):
        return nullcontext()
    return addresses.announce(home, addresses.UI, {addresses.UI: url})


def _keys(sources: Sources, host: str) -> Keys:
    """Return the keys with which other machines sign in.

    Raises:
        OpenToAll: the store has none, or is on another machine.
    """
    folder = sources.store_folder()
    keys = Keys(folder) if folder else None
    if keys is None or not keys.requires_key:
        raise OpenToAll("The pages of a store", host, "query", folder)
    return keys
