"""`ltrain up`: one process with a store's folder, two ports for OTLP and one for SQL."""

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Self

import uvicorn
from grpc import aio
from opentelemetry.sdk.environment_variables import OTEL_SDK_DISABLED
from starlette.types import Receive, Scope, Send

from ltrain_collector.access import Keys, secret_file, store_secret
from ltrain_collector.errors import OpenToAll
from ltrain_collector.forward import Target, Tee, forward_folder, require_others
from ltrain_collector.http import (
    BrowserGuard,
    Descriptors,
    RefusalCounts,
    RefusalReason,
    Tls,
    WaitingServer,
    bind_port,
    check_tls,
    listener_address,
    local_url,
    require_descriptors,
    server_config,
    url_host,
)
from ltrain_collector.ingest import Budgets, Intake
from ltrain_collector.metrics import Health, Monitor, OwnMetrics, SelfMetrics
from ltrain_collector.query import ClickHouseHttp, RoleLimits
from ltrain_collector.server.otlp_grpc import GrpcReceiver, make_server
from ltrain_collector.server.otlp_http import Receiver
from ltrain_collector.store import EmbeddedBackend, Engine, Store
from ltrain_instrument import addresses
from ltrain_instrument.machine import is_loopback
from ltrain_instrument.settings import HOME, STORE_SECRET

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
"""The default address, which other machines cannot reach."""

ONE_SERVER = (
    " One `ltrain up` serves all processes of this machine; --port-base starts another one, for "
    "another LTRAIN_HOME."
)

SHUTDOWN_SECONDS = 6
"""Seconds that open requests get to finish after SIGTERM."""

MAX_SHUTDOWN_SECONDS = 9.0
"""Seconds after SIGTERM at which the process exits in any case: a function that works on one block
cannot be interrupted. Acknowledged records are on disk by then."""


Grpc = tuple[aio.Server, int]
"""A server that is not started yet, and its port."""


@dataclass(frozen=True, slots=True)
class _Apps:
    """Passes each request to the app of its port."""

    otlp_port: int
    receiver: Receiver
    clickhouse_http: ClickHouseHttp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        port = scope["server"][1]
        app = self.receiver if port == self.otlp_port else self.clickhouse_http
        await app(scope, receive, send)


class _Server(WaitingServer):
    """Also serves gRPC, announces when both are ready, and stores the collector's own metrics."""

    def __init__(
        self,
        config: uvicorn.Config,
        grpc: Callable[[], Grpc],
        announce: Callable[[int], None],
        self_metrics: SelfMetrics,
        clickhouse_http: ClickHouseHttp,
    ) -> None:
        super().__init__(config)
        self._grpc_of = grpc
        self._clickhouse_http = clickhouse_http
        self._self_metrics = self_metrics
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._grpc, port = self._grpc_of()
        await self._grpc.start()
        await super().startup(sockets)
        self._self_metrics.start()
        self._announce(port)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        _start_exit_timer()
        await asyncio.gather(
            self._clickhouse_http.stop(),
            self._self_metrics.stop(),
            super().shutdown(sockets),
            self._grpc.stop(SHUTDOWN_SECONDS),
        )


@dataclass(frozen=True, slots=True)
class Ports:
    """Requested ports; 0 takes any free one."""

    otlp: int = 4318
    grpc: int = 4317
    sql: int = 8123
    reserved: Mapping[str, str] = field(default_factory=dict)
    """Addresses of servers of the same home that start later."""

    @classmethod
    def choose(
        cls, base: int | None, *, otlp: int | None, grpc: int | None, sql: int | None
    ) -> Self:
        """Return five consecutive ports from `base`, else the default ones, with the chosen ones.

        They are those of OTLP over HTTP and gRPC, of SQL, of the gateway and of the pages.
        """
        ports = cls() if base is None else cls(base, base + 1, base + 2, _reserved(base + 3))
        return replace(
            ports,
            otlp=ports.otlp if otlp is None else otlp,
            grpc=ports.grpc if grpc is None else grpc,
            sql=ports.sql if sql is None else sql,
        )


def _reserved(first: int) -> dict[str, str]:
    ports = {addresses.GATEWAY: first, addresses.UI: first + 1}
    return {name: local_url(HOST, port, None) for name, port in ports.items()}


def serve(
    directory: Path,
    ports: Ports,
    host: str = HOST,
    tls: Tls | None = None,
    allow_hosts: Iterable[str] = (),
    targets: Sequence[Target] = (),
) -> None:
    """Serve `directory` until SIGTERM or SIGINT.

    Args:
        allow_hosts: accepted values of `Host`, in addition to this machine's names and `host`.
        targets: endpoints that get the accepted requests, too.

    Raises:
        BadKeys: the store's file of keys is damaged.
        BadSetting: a limit of queries or of senders is invalid.
        BadTarget: a target is this collector, or its headers are invalid.
        BadTls: the files of `tls` are not a certificate with its key.
        OpenToAll: other machines could reach the store, and it has no keys.
        PortTaken: another process listens on a port.
        StoreInUse: another process has the folder open.
        StoreUnusable: the folder cannot be used.
        TooFewDescriptors: this process may open too few files.
    """
    require_descriptors()
    roles = RoleLimits.from_environment()
    budgets = Budgets.from_environment(directory.absolute())
    refusals = RefusalCounts()
    keys = Keys(directory.absolute(), partial(refusals.add, RefusalReason.KEYS))
    if not keys.requires_key and not is_loopback(host):
        raise OpenToAll("A store", host, "admin", directory)
    check_tls(tls)
    # check the gRPC port now: gRPC binds it later, once the store is open
    bind_port(host, ports.grpc, "--grpc-port", ONE_SERVER).close()
    with (
        bind_port(host, ports.otlp, "--otlp-port", ONE_SERVER) as otlp,
        bind_port(host, ports.sql, "--http-port", ONE_SERVER) as sql,
    ):
        # not the sockets: uvicorn closes them before it finishes the open requests
        otlp_port, sql_port = otlp.getsockname()[1], sql.getsockname()[1]
        require_others(targets, (otlp_port, sql_port, ports.grpc))
        os.environ.pop(OTEL_SDK_DISABLED, None)  # it is meant for agents; the collector counts
        metrics = OwnMetrics()
        engine = Engine(directory.absolute())
        clickhouse_http = ClickHouseHttp(engine, keys, roles, metrics.meter)
        try:
            _make_secret(directory.absolute())
            store = Store(EmbeddedBackend(engine), str(directory))
            store.migrate()
            with Tee(forward_folder(directory.absolute()), targets, metrics.meter) as tee:
                intake = Intake(engine, metrics.meter, budgets=budgets, tee=tee)
                monitor = Monitor(metrics, intake, engine, directory.absolute(), refusals)
                health = Health(monitor, tee)
                apps = _Apps(otlp_port, Receiver(intake, keys, health, store), clickhouse_http)
                app = BrowserGuard(apps, (host, *allow_hosts), refusals)
                config = server_config(app, tls, refusals, SHUTDOWN_SECONDS, loop="uvloop")
                _ignore_repeated_signals()
                receiver = GrpcReceiver(intake, keys, refusals)
                calls = Descriptors.measure().served // 4
                grpc = partial(make_server, receiver, host, ports.grpc, tls, calls)
                with ExitStack() as announcement:

                    def announce(grpc_port: int) -> None:
                        where = _addresses(otlp, sql, grpc_port, tls, allow_hosts)
                        where.update(ports.reserved)
                        where[addresses.FOLDER_OF_STORE] = str(directory.absolute())
                        announcement.enter_context(addresses.announce(HOME.read(), "up", where))
                        print(_ready_line(directory, otlp, sql, grpc_port, tls), flush=True)

                    _Server(config, grpc, announce, SelfMetrics(health), clickhouse_http).run(
                        sockets=[otlp, sql]
                    )
        finally:
            clickhouse_http.close()
            engine.close()


def _make_secret(directory: Path) -> None:
    """Create the store's secret, with which its owner signs keys."""
    try:
        store_secret(directory)
    except OSError as error:
        logger.warning(
            "ltrain: the store's secret %s cannot be read or created (%s), so its owner's commands "
            "need an admin key for changes over HTTP. Set %s.",
            secret_file(directory),
            error.strerror,
            STORE_SECRET.name,
        )


def _addresses(
    otlp: socket.socket, sql: socket.socket, grpc_port: int, tls: Tls | None, names: Iterable[str]
) -> dict[str, str]:
    """Return the addresses at which programs of this machine reach the store."""
    host, otlp_port = otlp.getsockname()[:2]
    ports = {addresses.OTLP: otlp_port, addresses.GRPC: grpc_port}
    ports[addresses.STORE] = sql.getsockname()[1]
    return {name: local_url(host, port, tls, names) for name, port in ports.items()}


def _ready_line(
    directory: Path, otlp: socket.socket, sql: socket.socket, grpc_port: int, tls: Tls | None
) -> str:
    scheme = "https" if tls else "http"
    return (
        f"ltrain: store ready: {directory}, OTLP on {scheme}://{listener_address(otlp)}, "
        f"gRPC on {url_host(otlp)}:{grpc_port}, SQL on {scheme}://{listener_address(sql)}"
    )


def _start_exit_timer() -> None:
    """Start a timer that ends the process after `MAX_SHUTDOWN_SECONDS`."""

    def end() -> None:
        print(
            "ltrain: queries and the store did not end within "
            f"{MAX_SHUTDOWN_SECONDS:g} s, so the process exits now. All acknowledged records are "
            "stored.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(0)

    timer = threading.Timer(MAX_SHUTDOWN_SECONDS, end)
    timer.daemon = True
    timer.start()


def _ignore_repeated_signals() -> None:
    """Ignore the signals that uvicorn raises again after it stops, so that the engine is closed."""

    def stopped(number: int, frame: FrameType | None) -> None:
        """Do nothing: uvicorn has handled the signal."""

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stopped)
