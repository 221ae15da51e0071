"""`ltrain up`: one process that owns a store's folder, OTLP in on two ports, SQL out on another."""

import asyncio
import errno
import logging
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn
from grpc import aio

from ltrain_collector.asgi import Receive, Scope, Send
from ltrain_collector.bound_keys import secret_file, store_secret
from ltrain_collector.embedded import EmbeddedBackend
from ltrain_collector.engine import Engine
from ltrain_collector.errors import PortTaken
from ltrain_collector.ingest.grpc_receiver import GrpcReceiver, server_of
from ltrain_collector.ingest.intake import Intake
from ltrain_collector.ingest.receiver import Receiver
from ltrain_collector.keys import Keys
from ltrain_collector.listen.browsers import Guard
from ltrain_collector.listen.connection import protocol
from ltrain_collector.listen.descriptors import Descriptors, raise_limit
from ltrain_collector.listen.refusals import Reason, Refusals
from ltrain_collector.query.facade import Facade
from ltrain_collector.query.limits import Roles
from ltrain_collector.store import Store
from ltrain_collector.tls import BadTls, Tls
from ltrain_collector.watch.diary import Diary
from ltrain_collector.watch.health import Health
from ltrain_collector.watch.state import Watched
from ltrain_instrument.errors import LtrainError
from ltrain_instrument.loopback import is_loopback
from ltrain_instrument.settings import STORE_SECRET

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
"""Where nobody else reaches it: what is served without keys."""

GRACE = 6
"""Seconds that open requests have to end after SIGTERM."""

LAST = 9.0
"""Seconds after SIGTERM at which the process ends in any case: a function that works on one block
cannot be interrupted. What was acknowledged is on disk by then."""


Grpc = tuple[aio.Server, int]
"""A server that is to be started, and its port."""


@dataclass(frozen=True, slots=True)
class _Apps:
    """The app of each port."""

    otlp: socket.socket
    sql: socket.socket
    receiver: Receiver
    facade: Facade

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        port = scope["server"][1]
        app = self.receiver if port == self.otlp.getsockname()[1] else self.facade
        await app(scope, receive, send)


class _Server(uvicorn.Server):
    """Serves gRPC beside it, says when both are ready, and keeps the diary."""

    def __init__(
        self,
        config: uvicorn.Config,
        grpc: Callable[[], Grpc],
        ready: str,
        diary: Diary,
        facade: Facade,
    ) -> None:
        super().__init__(config)
        self._grpc_of = grpc
        self._facade = facade
        self._diary = diary
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._grpc, port = self._grpc_of()
        await self._grpc.start()
        await super().startup(sockets)
        self._diary.start()
        print(self._ready.format(grpc_port=port), flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        _end_by_force()
        await asyncio.gather(
            self._facade.stop(),
            self._diary.stop(),
            super().shutdown(sockets),
            self._grpc.stop(GRACE),
        )


@dataclass(frozen=True, slots=True)
class Ports:
    """What is asked for; 0 is any free one."""

    otlp: int
    grpc: int
    sql: int


def serve(
    directory: Path,
    ports: Ports,
    host: str = HOST,
    tls: Tls | None = None,
    allow_hosts: Iterable[str] = (),
) -> None:
    """Serve `directory` until SIGTERM or SIGINT.

    Args:
        allow_hosts: names that requests may name in `Host`, beside this machine's and `host`.

    Raises:
        BadKeys: when the file of its keys is damaged.
        BadSetting: when a limit of queries cannot be read.
        OpenToAll: when others could reach it and no key was made.
        PortTaken: when a port is.
        StoreInUse: when another process has the folder.
        StoreUnusable: when the folder cannot be used.
    """
    roles = Roles.read()
    refusals = Refusals()
    keys = Keys(directory.absolute(), partial(refusals.add, Reason.KEYS))
    if not keys.guarded and not is_loopback(host):
        raise OpenToAll(host, directory)
    raise_limit()
    # gRPC binds its own, once there is a store to serve
    _bind(host, ports.grpc, "--grpc-port").close()
    with (
        _bind(host, ports.otlp, "--otlp-port") as otlp,
        _bind(host, ports.sql, "--http-port") as sql,
    ):
        engine = Engine(directory.absolute())
        facade = Facade(engine, keys, roles)
        try:
            _make_secret(directory.absolute())
            Store(EmbeddedBackend(engine), str(directory)).migrate()
            intake = Intake(engine)
            descriptors = Descriptors.now()
            watched = Watched(intake, facade.counters, engine, directory.absolute(), refusals)
            health = Health(watched)
            apps = _Apps(otlp, sql, Receiver(intake, keys, health), facade)
            config = uvicorn.Config(
                Guard(apps, (host, *allow_hosts), refusals),
                http=protocol(descriptors, refusals),
                loop="uvloop",
                lifespan="off",
                ws="none",
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=GRACE,
                ssl_certfile=tls.certificate if tls else None,
                ssl_keyfile=tls.key if tls else None,
            )
            _load(config, tls)
            _outlive_signals()
            receiver = GrpcReceiver(intake, keys, refusals)
            grpc = partial(server_of, receiver, host, ports.grpc, tls, descriptors.served // 4)
            ready = _ready(directory, otlp, sql, tls)
            _Server(config, grpc, ready, Diary(health), facade).run(sockets=[otlp, sql])
        finally:
            facade.close()
            engine.close()


def _make_secret(directory: Path) -> None:
    """Let the store have its secret from the beginning, with which its owner signs keys."""
    try:
        store_secret(directory)
    except OSError as error:
        logger.warning(
            "ltrain: the store's secret %s cannot be read or made (%s), so commands of its owner "
            "change nothing over HTTP without an admin key. Set %s.",
            secret_file(directory),
            error.strerror,
            STORE_SECRET.name,
        )


def _ready(directory: Path, otlp: socket.socket, sql: socket.socket, tls: Tls | None) -> str:
    scheme = "https" if tls else "http"
    return (
        f"ltrain: store ready: {directory}, OTLP on {scheme}://{_address(otlp)}, "
        f"gRPC on {_host(otlp)}:{{grpc_port}}, SQL on {scheme}://{_address(sql)}"
    )


def _address(listener: socket.socket) -> str:
    return f"{_host(listener)}:{listener.getsockname()[1]}"


def _host(listener: socket.socket) -> str:
    host = listener.getsockname()[0]
    return f"[{host}]" if ":" in host else str(host)


def _load(config: uvicorn.Config, tls: Tls | None) -> None:
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        if tls is None:
            raise
        raise BadTls(
            f"TLS cannot be served from {tls.certificate} and {tls.key}: {error}. Name a "
            "certificate and its private key, in PEM, with --tls-cert and --tls-key."
        ) from error


def _bind(host: str, port: int, option: str) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(port, option) from None
        raise BadPort(host, port, option, error.strerror or str(error)) from error
    return listener


class OpenToAll(LtrainError, PermissionError):
    """Others could reach the store, and there is no key that they would need."""

    def __init__(self, host: str, directory: Path) -> None:
        super().__init__(
            f"Without keys the store is served on this machine only, not on '{host}'. Make a key "
            f"with `ltrain key make admin --dir {directory}`, which every request then needs, or "
            "leave --host out."
        )


class BadPort(LtrainError, OSError):
    """A port or an address that this user may not listen on."""

    def __init__(self, host: str, port: int, option: str, why: str) -> None:
        super().__init__(
            f"Port {port} of {host} cannot be listened on: {why}. Choose 1024 to 65535 with "
            f"{option}, and an address of this machine with --host."
        )


def _end_by_force() -> None:
    """Let the process end in `LAST` seconds if it did not before."""

    def end() -> None:
        print(
            f"ltrain: queries and the store did not end within {LAST:g} s, so the process ends "
            "without them. All that was acknowledged is stored.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(0)

    timer = threading.Timer(LAST, end)
    timer.daemon = True
    timer.start()


def _outlive_signals() -> None:
    """uvicorn stops on these, then raises them again, which would end us before the engine."""

    def stopped(number: int, frame: FrameType | None) -> None:
        """uvicorn has heard it."""

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stopped)
