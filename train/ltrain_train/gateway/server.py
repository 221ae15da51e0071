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
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import uvicorn
import uvloop

from ltrain_collector.http import (
    BrowserGuard,
    Tls,
    WaitingServer,
    check_tls,
    listener_address,
    local_url,
    open_listener,
    server_config,
)
from ltrain_instrument.addresses import GATEWAY, announce
from ltrain_instrument.allow import UnsupportedTools
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
from ltrain_train.gateway.errors import StopGuard
from ltrain_train.gateway.keys import production_keys
from ltrain_train.gateway.routes import Routes, parse_routes
from ltrain_train.gateway.serving.adapter_trial import measure_adapter, warm_up
from ltrain_train.gateway.serving.host import PolicyHost
from ltrain_train.gateway.serving.plan import (
    AdapterOptions,
    BadUpstream,
    PlannedServer,
    choose_untried,
    parse_upstreams,
    plan_servers,
    prepare_version,
)
from ltrain_train.gateway.serving.policy_server import PolicyServer
from ltrain_train.gateway.serving.process_starter import ProcessStarter
from ltrain_train.gateway.serving.publication import Publication
from ltrain_train.gateway.serving.publish_choice import PublishChoice
from ltrain_train.gateway.serving.tinker import TinkerOptions
from ltrain_train.gateway.serving.turns import VllmTurns
from ltrain_train.gateway.serving.upstream import Upstream, UpstreamFailed
from ltrain_train.gateway.serving.vllm import Vllm, VllmOptions
from ltrain_train.gateway.tool_rules import ToolRules
from ltrain_train.policy import (
    NO_TOOLS,
    Policies,
    renders_tools,
)
from ltrain_train.processes import Children, GpuTurn
from ltrain_train.store import home_secret, open_service_provider

HOST = "127.0.0.1"
GC_THRESHOLD = 20_000
"""Objects that are created between two searches for cycles; Python's default is 700."""
SWITCH_INTERVAL = 0.0005
"""Seconds that the event loop waits for a computing thread; a close waits a dozen times."""
SHUTDOWN_TIMEOUT = 3
"""Seconds that calls in flight may take after the gateway was stopped."""


class PortTaken(LtrainError, OSError):
    """Another program listens on the port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The options of `ltrain serve`."""

    home: Path
    policies: tuple[str, ...]
    """The served policies; the first one is the default."""
    model: Path | None
    """Model directory that becomes version 0 of new policies."""
    port: int
    """0: any free port."""
    host: str = HOST
    """The address to listen on."""
    tls: Tls | None = None
    upstreams: tuple[str, ...]
    """URLs of running policy servers: `POLICY=URL`, or `URL` for all others; those of the other
    policies are started."""
    vllm: VllmOptions
    tinker: TinkerOptions | None = None
    """The Tinker server that samples in place of vLLM."""
    adapters: AdapterOptions
    replicas: tuple[str, ...] = ()
    """URLs of the servers behind the upstream, which is a router then."""
    upstream_key_env: str | None = None
    """Environment variable with the key of the upstreams."""
    unsupported_tools: UnsupportedTools = "drop"
    """The treatment of tools that only a provider's servers run."""
    routes: tuple[str, ...] = ()
    """Other models as `MODEL=URL`, or as the JSON object of a route."""
    continue_tokens: bool = False
    """Whether a call of an attempt continues an earlier one by its token ids."""
    responses_state: bool = False
    """Whether responses are kept, so that clients continue them by their ids."""


def serve(options: ServeOptions, log: Callable[[str], None]) -> None:
    """Serve until SIGTERM or ctrl-C.

    Raises:
        LtrainError: when the port is in use, other machines could make calls without a key, the
            certificate or the model is incomplete, or vLLM cannot be started.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    routes = parse_routes(options.routes, options.policies)
    check_tls(options.tls)
    production_keys(options.home, options.host)
    with contextlib.suppress(KeyboardInterrupt), _bind_port(options) as listening:
        policies, secret = Policies(options.home), home_secret(options.home)
        # before vLLM has loaded its model, so that other commands wait for this gateway
        announcement = announce(options.home, "serve", _addresses(listening, options))
        turn = GpuTurn(options.home) if options.vllm.sleeps else None
        # the guard of a vLLM keeps the turn until it has ended
        with announcement, Children(() if turn is None else (turn.descriptor,)) as children:
            service = GatewayServer(options, policies, children, log, turn)
            uvloop.run(service.run(secret, listening, Routes(routes)))


class GatewayServer:
    """Runs the gateway and its policy servers."""

    def __init__(
        self,
        options: ServeOptions,
        policies: Policies,
        children: Children,
        log: Callable[[str], None],
        turn: GpuTurn | None,
    ) -> None:
        """Start a server for the weights of the policies, unless a running one was named.

        With a `turn` vLLM starts within it, and sleeps while a learner has it.
        """
        if turn is not None and not turn.take(0):
            log("vLLM starts when the learner has left the GPU")
            turn.take()
        self._turns = VllmTurns(turn)
        self._options, self._policies, self._children, self._log = options, policies, children, log
        self._key = upstream_key(options.upstream_key_env)
        self._upstreams = parse_upstreams(options.upstreams, options.policies)
        self._collects = _collects(policies, options)
        """Whether it only records the calls of a server that it does not manage."""
        self._planned = [] if self._collects else self._plan()
        start = self._starter().start
        self._processes = [None if each.upstream else start(each) for each in self._planned]

    def _plan(self) -> list[PlannedServer]:
        options = self._options
        if options.tinker is not None:
            options.tinker.require()
        for policy in options.policies:
            prepare_version(self._policies, policy, options.model, self._log)
        return plan_servers(self._policies, options.policies, options.adapters, self._upstreams)

    def _starter(self) -> ProcessStarter:
        options, alone = self._options, len(self._planned) == 1
        engines = (options.vllm, options.tinker)
        return ProcessStarter(
            options.home, self._policies, self._children, *engines, self._log, alone=alone
        )

    async def run(self, secret: str, listening: socket.socket, routes: Routes) -> None:
        """Serve on a bound socket until a signal arrives or vLLM has died too often."""
        options = self._options
        provider = open_service_provider("ltrain-gateway", options.home, strict=True)
        async with AsyncExitStack() as stack:
            stack.callback(provider.shutdown)
            stack.push_async_callback(routes.close)
            hosts = await self._open_hosts(stack)
            publications = [each for host in hosts for each in host.publications]
            publications.sort(key=lambda each: options.policies.index(each.policy))
            if self._collects:
                publications.append(await self._open_collection(stack))
            gateway = Gateway(
                publications,
                secret=secret,
                provider=provider,
                store_keys=production_keys(options.home, options.host),
                tools=ToolRules(options.unsupported_tools, self._log, self._check_template),
                routes=routes,
                attempts=AttemptRegistry(ClosedAttempts(options.home / "gateway" / "closed.jsonl")),
                folder=options.home / "gateway",
                publish_choice=await self._choose_artifact(hosts),
                turns=self._turns,
                keeps_responses=options.responses_state,
            )
            stack.callback(gateway.stop)
            await self._serve(gateway, hosts, listening)

    async def _open_collection(self, stack: AsyncExitStack) -> CollectionPublication:
        """Return the policy of a server that is not managed."""
        [policy] = self._options.policies
        address = self._upstreams[policy]
        upstream = Upstream(address, policy, key=self._key, health_path="/v1/models")
        stack.push_async_callback(upstream.close)
        collection = await open_collection(upstream)
        self._log(collection.notice)
        return CollectionPublication(self._policies, policy, collection)

    async def _open_hosts(self, stack: AsyncExitStack) -> list[PolicyHost]:
        """Return the policy servers, which have the current versions."""
        hosts = []
        for planned, process in zip(self._planned, self._processes, strict=True):
            vllm = process if isinstance(process, Vllm) else None
            address = process.socket if process else planned.upstream
            upstream = Upstream(
                address or "",
                planned.weights.policy,
                key=self._key,
                replicas=self._options.replicas if planned.upstream else (),
                stages=vllm is not None and self._options.vllm.stages,
                shares=vllm is not None and self._options.vllm.shares,
            )
            stack.push_async_callback(upstream.close)
            server = PolicyServer(
                self._policies,
                upstream,
                planned.weights,
                max_adapters=planned.max_adapters,
                replicas=self._options.vllm.replicas if vllm else 1,
                continues=self._options.continue_tokens,
                on_lost=process.kill if process else _leave_running,
                log=self._log,
            )
            publications = [
                Publication(policy, server, version=version)
                for policy, version in planned.versions.items()
            ]
            if vllm is not None:
                self._turns.servers.append(server)
            hosts.append(PolicyHost(server, publications, process, self._log, self._turns))
            await hosts[-1].prepare()
        return hosts

    async def _choose_artifact(self, hosts: Sequence[PolicyHost]) -> PublishChoice:
        """Return what learners publish, after a trial if it is needed to know it."""
        adapters = self._options.adapters
        choice = choose_untried(self._planned, adapters)
        if choice is None or (choice.artifact == "adapter" and not adapters.required):
            server = hosts[0].server
            path = self._policies.path(server.weights.policy, server.weights.version)
            try:
                if choice is None:
                    trial = await measure_adapter(server.upstream, path, adapters.lora_rank)
                    choice = trial.choice
                else:
                    await warm_up(server.upstream, path, adapters.lora_rank)
            except UpstreamFailed as error:
                if adapters.publish == "adapter":
                    raise
                choice = PublishChoice("merged", f"the server takes no adapter: {error}")
        if adapters.lora_rank and adapters.publish == "auto":
            self._log(choice.describe())
        return choice

    def _check_template(self) -> None:
        """Print whether the model does not see the tools of the requests."""
        for policy in () if self._upstreams else self._options.policies:
            model = self._policies.weights_path(policy, self._policies.current(policy))
            if not renders_tools(model, self._options.vllm.chat_template):
                self._log(NO_TOOLS.format(f"policy '{policy}'"))

    async def _serve(
        self, gateway: Gateway, hosts: Sequence[PolicyHost], listening: socket.socket
    ) -> None:
        server = _UvicornServer(_config(gateway, self._options))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, server.stop)
        gateway.began = time.monotonic()  # what begins after an answer began after this
        answering = asyncio.ensure_future(server.serve(sockets=[listening]))
        watching = [asyncio.ensure_future(host.watch()) for host in hosts]
        await server.wait_started(answering)
        _tune_interpreter()
        self._log(_describe(gateway, listening, self._options))
        await asyncio.wait((answering, *watching), return_when=asyncio.FIRST_COMPLETED)
        failed = [watch for watch in watching if watch.done()]
        server.stop()
        await answering
        for watch in watching:
            watch.cancel()  # vLLM is stopped next, which must not count as a death
        await asyncio.gather(*watching, return_exceptions=True)
        await asyncio.to_thread(self._children.stop)  # this also ends a restart in progress
        for watch in failed:
            watch.result()


def _addresses(listening: socket.socket, options: ServeOptions) -> dict[str, str]:
    """Return the address at which programs of this machine reach the gateway."""
    host, port = listening.getsockname()[:2]
    return {GATEWAY: local_url(host, port, options.tls, ALLOW_HOSTS.read())}


def _describe(gateway: Gateway, listening: socket.socket, options: ServeOptions) -> str:
    """Return the sentence on what is served where."""
    names = []
    for each in gateway.policies.publications:
        names.append(each.policy + ("" if each.version is None else f" v{each.version}"))
    policies = f"{'policy' if len(names) == 1 else 'policies'} {', '.join(names)}"
    limit = gateway.policies.default.upstream.max_model_len
    tokens = f", {limit:,} tokens of prompt and response at most" if limit else ""
    scheme = "https" if options.tls else "http"
    return f"gateway ready at {scheme}://{listener_address(listening)}/v1, {policies}{tokens}"


class _UvicornServer(WaitingServer):
    """Uvicorn without its signal handlers, which raise the signal again when it exits."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def wait_started(self, serving: asyncio.Future[None]) -> None:
        while not self.started and not serving.done():
            await asyncio.sleep(0.01)

    def stop(self) -> None:
        self.should_exit = True


def _tune_interpreter() -> None:
    """Search rarely for cycles, as calls create few, and not in what the start has created."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    sys.setswitchinterval(SWITCH_INTERVAL)


def _config(gateway: Gateway, options: ServeOptions) -> uvicorn.Config:
    hosts = (options.host, *ALLOW_HOSTS.read())
    app = BrowserGuard(StopGuard(gateway.app()), hosts, gateway.refusals)
    return server_config(
        app,
        options.tls,
        gateway.refusals,
        SHUTDOWN_TIMEOUT,
        date_header=False,
        timeout_keep_alive=120,
    )


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
    has_version = options.model is not None or any(map(policies.versions, options.policies))
    if not options.upstreams or has_version:
        return False
    if len(options.policies) > 1:
        raise BadUpstream(
            f"The policies {', '.join(options.policies)} have no version, and a gateway that only "
            "records has one model. Name one --policy, and the others with --route MODEL=URL."
        )
    return True


def _leave_running() -> None:
    """Do nothing: `ltrain serve` did not start this policy server, so it does not end it."""
