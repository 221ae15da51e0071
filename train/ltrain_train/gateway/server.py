"""`ltrain serve`: the gateway on its port, the policy server behind it, both to one end.

The port is taken before vLLM starts, so that a port in use is said at once. When vLLM dies, calls
wait while it is started again with the current version.
"""

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
import uvloop

from ltrain_collector.keys import Keys
from ltrain_collector.listen.browsers import BrowserGuard
from ltrain_collector.listen.connection import connection_factory
from ltrain_collector.listen.descriptors import Descriptors, raise_limit
from ltrain_instrument.errors import LtrainError
from ltrain_instrument.settings import ALLOW_HOSTS
from ltrain_train.deaths import Deaths
from ltrain_train.gateway.app import Gateway
from ltrain_train.gateway.keys import gateway_secret
from ltrain_train.gateway.publication import Publication
from ltrain_train.gateway.upstream import Upstream, UpstreamFailed
from ltrain_train.gateway.vllm import Vllm, VllmOptions
from ltrain_train.policy.versions import Policies
from ltrain_train.process import Children
from ltrain_train.service_key import open_service
from ltrain_train.store_folder import store_folder

HOST = "127.0.0.1"
WATCH = 0.2
"""Seconds between two looks at vLLM."""
FAREWELL = 3
"""Seconds that calls in flight have when the gateway is stopped."""


class PortTaken(LtrainError, OSError):
    """A port that another program listens on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    home: Path
    policy: str
    model: Path | None
    """Becomes version 0 of a policy that has none."""
    port: int
    """0 takes any free one."""
    upstream: str | None
    """A policy server that runs already; None starts vLLM."""
    vllm: VllmOptions


def serve(options: ServeOptions, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or ctrl-C.

    Raises:
        LtrainError: when the port, the model or vLLM are not as they must be.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), _port(options.port) as listening:
        policies, secret = Policies(options.home), gateway_secret(options.home)
        _choose_version(policies, options, say)
        with Children() as children:
            service = Service(options, policies, children, say)
            uvloop.run(service.run(secret, listening))


class Service:
    """Gateway and policy server, side by side."""

    def __init__(
        self,
        options: ServeOptions,
        policies: Policies,
        children: Children,
        say: Callable[[str], None],
    ) -> None:
        self._options, self._children, self._say = options, children, say
        self._policies, self._policy = policies, options.policy
        self._vllm = None if options.upstream else self._start_vllm()

    async def run(self, secret: str, listening: socket.socket) -> None:
        """Answer on a bound socket until a signal, or until vLLM cannot be kept alive."""
        options = self._options
        address = self._vllm.socket if self._vllm else options.upstream
        upstream = Upstream(address or "", self._policy)
        provider = open_service("ltrain-gateway", options.home, strict=True)
        publication = Publication(
            self._policies,
            self._policy,
            upstream,
            version=self._policies.current(self._policy),
            give_up=self._vllm.kill if self._vllm else _nothing,
            say=self._say,
        )
        try:
            if options.upstream:
                await _join(publication)
            else:
                await publication.started()
            folder = store_folder(options.home)
            keys = Keys(folder) if folder else None
            gateway = Gateway(publication, secret=secret, provider=provider, store_keys=keys)
            await self._answer(gateway, listening)
        finally:
            await upstream.close()
            provider.shutdown()

    def _start_vllm(self) -> Vllm:
        home = self._options.home
        log = home / "logs" / "vllm.log"
        vllm = Vllm(
            self._children,
            name=self._policy,
            options=self._options.vllm,
            log=log,
            sockets=home / "sockets",
        )
        self._say(f"starting vLLM; its log is {log}")
        vllm.start(self._current())
        return vllm

    def _current(self) -> Path:
        return self._policies.path(self._policy, self._policies.current(self._policy))

    async def _answer(self, gateway: Gateway, listening: socket.socket) -> None:
        server = _Server(_config(gateway))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, server.stop)
        answering = asyncio.ensure_future(server.serve(sockets=[listening]))
        watching = asyncio.ensure_future(self._watch(gateway.publication))
        await server.wait_started(answering)
        gateway.since = time.time()  # until now an agent may have found nobody here
        where = f"http://{HOST}:{listening.getsockname()[1]}"
        version = f"policy {self._policy} v{gateway.publication.gate.version}"
        self._say(f"gateway ready at {where}/v1, {version}")
        await asyncio.wait((answering, watching), return_when=asyncio.FIRST_COMPLETED)
        failed = watching.done()
        server.stop()
        await answering
        watching.cancel()  # the end of vLLM is no death from here on
        await asyncio.wait((watching,))
        await asyncio.to_thread(self._children.stop)  # ends a restart that is under way, too
        if failed:
            watching.result()

    async def _watch(self, publication: Publication) -> None:
        """Start vLLM again whenever it dies; give up when it dies again and again."""
        deaths = Deaths()
        while True:
            await asyncio.sleep(WATCH)
            if self._vllm is None or self._vllm.child.alive:
                continue
            if deaths.too_many():
                self._vllm.child.check()
            how = self._vllm.child.ending()
            self._say(f"vLLM died {how}; calls wait while it starts again")
            async with publication.gate.shut():
                await asyncio.to_thread(self._vllm.start, self._current())
                await publication.started()
            self._say(f"vLLM is back with {self._policy} v{publication.gate.version}")


class _Server(uvicorn.Server):
    """Uvicorn under our signals, which it would otherwise raise again on its way out."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def wait_started(self, serving: asyncio.Future[None]) -> None:
        while not self.started and not serving.done():
            await asyncio.sleep(0.01)

    def stop(self) -> None:
        self.should_exit = True


def _config(gateway: Gateway) -> uvicorn.Config:
    raise_limit()
    refusals = gateway.refusals
    return uvicorn.Config(
        BrowserGuard(gateway.app(), ALLOW_HOSTS.read(), refusals),
        http=connection_factory(Descriptors.measure(), refusals),
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=120,
        timeout_graceful_shutdown=FAREWELL,
    )


def _choose_version(policies: Policies, options: ServeOptions, say: Callable[[str], None]) -> None:
    name, model = options.policy, options.model
    if model is not None and not policies.versions(name):
        policies.register(name, model)
    version = policies.current(name)
    policies.check(name, version)
    if model is not None and version:
        say(f"policy {name} goes on with v{version}; '{model}' is its first version's")


async def _join(publication: Publication) -> None:
    """Take over a policy server that runs already.

    Raises:
        UpstreamFailed: when it serves another model, or has no admin routes.
    """
    served = await publication.upstream.models()
    if publication.policy not in served:
        raise UpstreamFailed(
            f"The policy server at {publication.upstream.address} serves {', '.join(served)}. "
            f"Start it with --served-model-name {publication.policy}, or give --policy {served[0]}."
        )
    await publication.join()


@contextlib.contextmanager
def _port(number: int) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, number))
            listening.listen()
        except OSError as error:
            raise PortTaken(
                f"Port {number} of {HOST} cannot be used: {error.strerror}. "
                "Stop what listens there, or choose another with --port."
            ) from error
        yield listening


def _nothing() -> None:
    """Leave a policy server that is not ours alone."""
