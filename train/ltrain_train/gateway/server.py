"""`ltrain serve`: runs the gateway on its port and the policy server behind it.

The gateway binds the port before vLLM starts, so that a port in use is reported at once. When vLLM
dies, calls wait while it is started again with the current version. When a policy server that the
gateway did not start is away, calls wait until it answers and has the current version.
"""

import asyncio
import contextlib
import gc
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
import uvloop

from ltrain_collector.http import (
    BrowserGuard,
    Descriptors,
    Tls,
    connection_factory,
    listener_address,
    load_config,
    open_listener,
    raise_limit,
)
from ltrain_instrument.errors import LtrainError
from ltrain_instrument.settings import ALLOW_HOSTS
from ltrain_train.gateway.app import Gateway
from ltrain_train.gateway.attempts import AttemptRegistry
from ltrain_train.gateway.closed_attempts import ClosedAttempts
from ltrain_train.gateway.collection import (
    CollectionPublication,
    open_collection,
    upstream_key,
)
from ltrain_train.gateway.errors import Refused
from ltrain_train.gateway.keys import gateway_secret, require_store_keys, store_keys
from ltrain_train.gateway.publication import Publication
from ltrain_train.gateway.routes import Routes, parse_routes
from ltrain_train.gateway.upstream import Upstream, UpstreamFailed
from ltrain_train.gateway.vllm import Vllm, VllmOptions
from ltrain_train.policy import NO_TOOLS, Policies, renders_tools
from ltrain_train.processes import Children, RestartLimit
from ltrain_train.store import open_service_provider

HOST = "127.0.0.1"
POLL = 0.2
"""Seconds between two checks of vLLM."""
UPSTREAM_POLL = 1.0
"""Seconds between two requests for the health of a policy server that the gateway did not start."""
GC_THRESHOLD = 20_000
"""Objects that are created between two searches for cycles; Python's default is 700."""
SHUTDOWN_TIMEOUT = 3
"""Seconds that calls in flight may take after the gateway was stopped."""


class PortTaken(LtrainError, OSError):
    """Another program listens on the port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The options of `ltrain serve`."""

    home: Path
    policy: str
    model: Path | None
    """Model directory that becomes version 0 of a new policy."""
    port: int
    """0: any free port."""
    host: str = HOST
    """The address to listen on."""
    tls: Tls | None = None
    upstream: str | None
    """URL of a running policy server; None starts vLLM."""
    vllm: VllmOptions
    upstream_key_env: str | None = None
    """Environment variable with the key of `upstream`."""
    routes: tuple[str, ...] = ()
    """Other models as `MODEL=URL`, or as the JSON object of a route."""


def serve(options: ServeOptions, log: Callable[[str], None]) -> None:
    """Serve until SIGTERM or ctrl-C.

    Raises:
        LtrainError: when the port is in use, other machines could make calls without a key, the
            model is incomplete, or vLLM cannot be started.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    routes = parse_routes(options.routes, options.policy)
    require_store_keys(options.home, options.host)
    with contextlib.suppress(KeyboardInterrupt), _bind_port(options) as listening:
        policies, secret = Policies(options.home), gateway_secret(options.home)
        collects = _collects(policies, options)
        if not collects:
            _prepare_version(policies, options, log)
        with Children() as children:
            service = GatewayServer(options, policies, children, log, collects)
            uvloop.run(service.run(secret, listening, Routes(routes)))


class GatewayServer:
    """Runs the gateway and the policy server."""

    def __init__(
        self,
        options: ServeOptions,
        policies: Policies,
        children: Children,
        log: Callable[[str], None],
        collects: bool = False,
    ) -> None:
        self._collects = collects
        """Whether it only records the calls of a server that it does not manage."""
        self._key = upstream_key(options.upstream_key_env)
        self._options, self._children, self._log = options, children, log
        self._policies, self._policy = policies, options.policy
        self._template_checked = False
        self._started = 0 if collects else policies.current(options.policy)
        """The version that vLLM was first started with."""
        self._vllm = None if options.upstream else self._start_vllm()

    async def run(self, secret: str, listening: socket.socket, routes: Routes) -> None:
        """Serve on a bound socket until a signal arrives or vLLM has died too often."""
        options = self._options
        address = self._vllm.socket if self._vllm else options.upstream
        health_path = "/v1/models" if self._collects else "/health"
        upstream = Upstream(address or "", self._policy, key=self._key, health_path=health_path)
        provider = open_service_provider("ltrain-gateway", options.home, strict=True)
        publication = self._publication(upstream)
        collection = None
        try:
            if self._collects:
                collection = await open_collection(upstream)
                self._log(collection.notice)
            else:
                await self._load_current(publication)
            gateway = Gateway(
                publication,
                secret=secret,
                provider=provider,
                store_keys=store_keys(options.home, options.host),
                on_tools=self._warn_of_template,
                routes=routes,
                attempts=AttemptRegistry(ClosedAttempts(options.home / "gateway" / "closed.jsonl")),
                collection=collection,
            )
            await self._serve(gateway, listening)
        finally:
            await upstream.close()
            await routes.close()
            provider.shutdown()

    def _publication(self, upstream: Upstream) -> Publication:
        if self._collects:
            return CollectionPublication(self._policies, self._policy, upstream)
        return Publication(
            self._policies,
            self._policy,
            upstream,
            version=self._started,
            on_lost=self._vllm.kill if self._vllm else _leave_running,
            log=self._log,
        )

    async def _load_current(self, publication: Publication) -> None:
        """Serve the current version, also if another command changed it while vLLM started."""
        if self._options.upstream:
            await _attach(publication)
        else:
            await publication.label_started(self._started)
        current = self._policies.current(self._policy)
        if current != publication.gate.version:
            await publication.publish(current)

    def _warn_of_template(self) -> None:
        """Print once that the model does not see the tools of the requests."""
        if self._vllm is not None and not self._template_checked:
            self._template_checked = True
            model = self._policies.path(self._policy, self._started)
            if not renders_tools(model, self._options.vllm.chat_template):
                self._log(NO_TOOLS.format(f"policy '{self._policy}'"))

    def _start_vllm(self) -> Vllm:
        home = self._options.home
        log_file = home / "logs" / "vllm.log"
        vllm = Vllm(
            self._children,
            name=self._policy,
            options=self._options.vllm,
            log=log_file,
            sockets=home / "sockets",
        )
        self._log(f"starting vLLM; its log is {log_file}")
        vllm.start(self._policies.path(self._policy, self._started))
        return vllm

    async def _serve(self, gateway: Gateway, listening: socket.socket) -> None:
        server = _UvicornServer(_config(gateway, self._options))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, server.stop)
        answering = asyncio.ensure_future(server.serve(sockets=[listening]))
        watch = self._restart_vllm if self._vllm else self._wait_for_upstream
        if self._collects:
            watch = _watch_nothing
        watching = asyncio.ensure_future(watch(gateway.publication))
        await server.wait_started(answering)
        _tune_garbage_collection()
        gateway.since = time.time()  # before this, an agent's calls may have been refused
        scheme = "https" if self._options.tls else "http"
        where = f"{scheme}://{listener_address(listening)}"
        served = gateway.publication.version
        version = f"policy {self._policy}" + ("" if served is None else f" v{served}")
        limit = gateway.publication.upstream.max_model_len
        tokens = f", {limit:,} tokens of prompt and response at most" if limit else ""
        self._log(f"gateway ready at {where}/v1, {version}{tokens}")
        await asyncio.wait((answering, watching), return_when=asyncio.FIRST_COMPLETED)
        failed = watching.done()
        server.stop()
        await answering
        watching.cancel()  # vLLM is stopped next, which must not count as a death
        await asyncio.wait((watching,))
        await asyncio.to_thread(self._children.stop)  # this also ends a restart in progress
        if failed:
            watching.result()

    async def _restart_vllm(self, publication: Publication) -> None:
        """Start vLLM again when it dies; raise `ChildDied` when it has died too often."""
        restart_limit = RestartLimit()
        while True:
            await asyncio.sleep(POLL)
            if self._vllm is None or self._vllm.child.alive:
                continue
            if restart_limit.record_death():
                self._vllm.child.check()
            how = self._vllm.child.describe_exit()
            self._log(f"vLLM died {how}; calls wait while it starts again")
            async with publication.gate.shut(f"vLLM ended {how}; it is started again"):
                version = publication.kept_version
                model = self._policies.path(self._policy, version)
                await asyncio.to_thread(self._vllm.start, model)
                await publication.label_started(version)
            self._log(f"vLLM runs again with {self._policy} v{publication.gate.version}")

    async def _wait_for_upstream(self, publication: Publication) -> None:
        """Hold the calls while a policy server that was started elsewhere is away."""
        upstream, gate = publication.upstream, publication.gate
        while True:
            await asyncio.sleep(UPSTREAM_POLL)
            if await upstream.is_healthy() or await upstream.is_healthy():  # one may be slow
                continue
            reason = f"the policy server at {upstream.address} does not answer"
            self._log(f"{reason}; calls wait until it does")
            with contextlib.suppress(Refused):  # calls are in flight: the server is only slow
                async with gate.shut(reason):
                    await sync_returned(publication, self._log)
                self._log(f"the policy server serves {self._policy} v{gate.version} again")


class _UvicornServer(uvicorn.Server):
    """Uvicorn without its signal handlers, which raise the signal again when it exits."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def wait_started(self, serving: asyncio.Future[None]) -> None:
        while not self.started and not serving.done():
            await asyncio.sleep(0.01)

    def stop(self) -> None:
        self.should_exit = True


def _tune_garbage_collection() -> None:
    """Exempt what the start has created, and search rarely: the calls create few cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


def _config(gateway: Gateway, options: ServeOptions) -> uvicorn.Config:
    raise_limit()
    refusals, tls = gateway.refusals, options.tls
    config = uvicorn.Config(
        BrowserGuard(gateway.app(), (options.host, *ALLOW_HOSTS.read()), refusals),
        http=connection_factory(Descriptors.measure(), refusals),
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=120,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT,
        ssl_certfile=tls.certificate if tls else None,
        ssl_keyfile=tls.key if tls else None,
    )
    load_config(config, tls)
    return config


def _prepare_version(policies: Policies, options: ServeOptions, log: Callable[[str], None]) -> None:
    name, model = options.policy, options.model
    if model is not None and not policies.versions(name):
        policies.register(name, model)
    version = policies.current(name)
    policies.verify(name, version)
    if model is not None and version:
        log(f"policy {name} continues with v{version}; '{model}' is used for version 0 only")


async def sync_returned(publication: Publication, log: Callable[[str], None]) -> None:
    """Wait until the policy server answers, and load the current version into it.

    Each reason for which that fails is logged once.
    """
    logged: set[str] = set()
    while True:
        try:
            if await publication.upstream.is_healthy():
                return await _attach(publication)
        except UpstreamFailed as error:
            publication.gate.reason = reason = str(error)
            if reason not in logged:
                logged.add(reason)
                log(reason)
        await asyncio.sleep(UPSTREAM_POLL)


async def _attach(publication: Publication) -> None:
    """Load the current version into a policy server that already runs.

    Raises:
        UpstreamFailed: when it serves another model or none, or has no admin routes.
    """
    served = await publication.upstream.models()
    if publication.policy not in served:
        other = f", or use --policy {served[0]}" if served else ""
        raise UpstreamFailed(
            f"The policy server at {publication.upstream.address} serves "
            f"{', '.join(served) or 'no model'}. Start it with --served-model-name "
            f"{publication.policy}{other}."
        )
    await publication.sync_weights()


def _bind_port(options: ServeOptions) -> socket.socket:
    try:
        return open_listener(options.host, options.port)
    except OSError as error:
        raise PortTaken(
            f"Port {options.port} of {options.host} cannot be used: {error.strerror}. Stop the "
            "program that listens there, choose another port with --port, or name an address of "
            "this machine with --host."
        ) from error


def _collects(policies: Policies, options: ServeOptions) -> bool:
    """Return whether there is no version to load into the server that was named."""
    has_version = options.model is not None or bool(policies.versions(options.policy))
    return options.upstream is not None and not has_version


async def _watch_nothing(publication: Publication) -> None:
    """Wait for ever: the gateway neither restarts a collected server nor holds its calls."""
    await asyncio.Event().wait()


def _leave_running() -> None:
    """Do nothing: `ltrain serve` did not start this policy server, so it does not end it."""
