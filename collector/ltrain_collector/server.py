"""`ltrain up`: one process that owns a store's folder, OTLP in on two ports, SQL out on another."""

import asyncio
import errno
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn

from ltrain_collector.asgi import Receive, Scope, Send
from ltrain_collector.embedded import EmbeddedBackend
from ltrain_collector.engine import Engine
from ltrain_collector.errors import PortTaken
from ltrain_collector.ingest.grpc_receiver import server_of
from ltrain_collector.ingest.intake import Intake
from ltrain_collector.ingest.receiver import Receiver
from ltrain_collector.query.facade import Facade
from ltrain_collector.store import Store
from ltrain_instrument.errors import LtrainError

HOST = "127.0.0.1"

GRACE = 10
"""Seconds that open requests have to end after SIGTERM."""


@dataclass(frozen=True, slots=True)
class _Ports:
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
    """Serves gRPC beside it, and says when both are ready."""

    def __init__(self, config: uvicorn.Config, intake: Intake, grpc_port: int, ready: str) -> None:
        super().__init__(config)
        self._intake = intake
        self._grpc_port = grpc_port
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._grpc, port = server_of(self._intake, HOST, self._grpc_port)
        await self._grpc.start()
        await super().startup(sockets)
        print(self._ready.format(grpc_port=port), flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await asyncio.gather(super().shutdown(sockets), self._grpc.stop(GRACE))


def serve(directory: Path, otlp_port: int, grpc_port: int, http_port: int) -> None:
    """Serve `directory` until SIGTERM or SIGINT; a port of 0 is any free one.

    Raises:
        PortTaken: when a port is.
        StoreInUse: when another process has the folder.
        StoreUnusable: when the folder cannot be used.
    """
    _bind(grpc_port, "--grpc-port").close()  # gRPC binds its own, once there is a store to serve
    with _bind(otlp_port, "--otlp-port") as otlp, _bind(http_port, "--http-port") as sql:
        engine = Engine(directory.absolute())
        try:
            Store(EmbeddedBackend(engine), str(directory)).migrate()
            intake = Intake(engine)
            ports = _Ports(otlp, sql, Receiver(intake), Facade(engine))
            config = uvicorn.Config(
                ports,
                http="httptools",
                loop="uvloop",
                lifespan="off",
                ws="none",
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=GRACE,
            )
            _outlive_signals()
            ready = _ready(directory, otlp, sql)
            _Server(config, intake, grpc_port, ready).run(sockets=[otlp, sql])
        finally:
            engine.close()


def _ready(directory: Path, otlp: socket.socket, sql: socket.socket) -> str:
    return (
        f"ltrain: store ready: {directory}, OTLP on http://{HOST}:{otlp.getsockname()[1]}, "
        f"gRPC on {HOST}:{{grpc_port}}, SQL on http://{HOST}:{sql.getsockname()[1]}"
    )


def _bind(port: int, option: str) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(port, option) from None
        raise BadPort(port, option, error.strerror or str(error)) from error
    return listener


class BadPort(LtrainError, OSError):
    """A port that this user may not listen on."""

    def __init__(self, port: int, option: str, why: str) -> None:
        super().__init__(
            f"Port {port} cannot be listened on: {why}. Choose 1024 to 65535 with {option}."
        )


def _outlive_signals() -> None:
    """uvicorn stops on these, then raises them again, which would end us before the engine."""

    def stopped(number: int, frame: FrameType | None) -> None:
        """uvicorn has heard it."""

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stopped)
