"""Where an HTTP server of ltrain listens, and how: address, socket, certificate and settings."""

import errno
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from ltrain_collector.errors import BadPort, BadTls, PortTaken
from ltrain_collector.http.connection import connection_factory
from ltrain_collector.http.descriptors import Descriptors, raise_limit
from ltrain_collector.http.refusals import RefusalCounts

BACKLOG = 1024
"""Connections that wait to be accepted."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files of a server's certificate and its private key."""

    certificate: Path
    key: Path


def open_listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address.

    Args:
        host: an IPv4 or IPv6 address, or a name with an IPv4 address.
        port: 0 for any free port.

    Raises:
        OSError: when the address is in use, or is none of this machine.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def bind_port(host: str, port: int, option: str, hint: str = "") -> socket.socket:
    """Return a socket that listens on the port that a user chose with an option.

    Args:
        hint: what else the user can do if the port is taken.

    Raises:
        BadPort: when this process cannot listen there.
        PortTaken: when another process listens on the port.
    """
    try:
        return open_listener(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(port, option, hint) from None
        raise BadPort(host, port, option, error.strerror or str(error)) from error


def listener_address(listener: socket.socket) -> str:
    """Return the host and the port on which a socket listens, as a URL has them."""
    return f"{url_host(listener)}:{listener.getsockname()[1]}"


def url_host(listener: socket.socket) -> str:
    """Return the host on which a socket listens, as a URL has it."""
    host = listener.getsockname()[0]
    return f"[{host}]" if ":" in host else str(host)


def local_url(host: str, port: int, tls: Tls | None, names: Iterable[str] = ()) -> str:
    """Return the URL at which programs of this machine reach a server.

    Args:
        host: the address on which the server listens.
        names: further names of the machine; a certificate is for the first.
    """
    name = next(iter(names), host) if tls else host
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(name, name)
    return f"{'https' if tls else 'http'}://{f'[{name}]' if ':' in name else name}:{port}"


def check_tls(tls: Tls | None) -> None:
    """Check the files of a certificate, before a server does what takes long.

    Raises:
        BadTls: the files are not a certificate with its key.
    """
    if tls is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.certificate, tls.key)
    except OSError as error:
        raise BadTls(
            f"TLS cannot be served from {tls.certificate} and {tls.key}: {error}. Name a "
            "certificate and its private key, in PEM, with --tls-cert and --tls-key."
        ) from error


def server_config(
    app: ASGIApp, tls: Tls | None, refusals: RefusalCounts, shutdown_seconds: int, **settings: Any
) -> uvicorn.Config:
    """Return the configuration of a server, and raise this process's limit of descriptors.

    Args:
        shutdown_seconds: how long open requests get to finish after SIGTERM.
        settings: further settings of uvicorn.
    """
    raise_limit()
    return uvicorn.Config(
        app,
        http=connection_factory(Descriptors.measure(), refusals),
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=shutdown_seconds,
        ssl_certfile=tls.certificate if tls else None,
        ssl_keyfile=tls.key if tls else None,
        **settings,
    )
