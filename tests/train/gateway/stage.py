"""A gateway in a thread, between tests and a policy server; spans are read from its spool."""

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from tests.train.gateway.recorder import Recorder

from ltrain_collector.access import AttemptKey, Keys
from ltrain_instrument.clock import Deadline
from ltrain_instrument.delivery import create_tracer_provider
from ltrain_instrument.delivery.frames import RecordReader
from ltrain_instrument.identity import Identity, Mode
from ltrain_train.gateway.app import Gateway
from ltrain_train.gateway.client import GatewayClient
from ltrain_train.gateway.collection import CollectionPublication, open_collection
from ltrain_train.gateway.errors import StopGuard
from ltrain_train.gateway.routes import Routes
from ltrain_train.gateway.serving.host import PolicyHost
from ltrain_train.gateway.serving.policy_server import PolicyServer, read_weights
from ltrain_train.gateway.serving.publication import Publication
from ltrain_train.gateway.serving.turns import VllmTurns
from ltrain_train.gateway.serving.upstream import Upstream
from ltrain_train.gateway.serving.vllm import Vllm, VllmOptions
from ltrain_train.gateway.tool_rules import ToolRules
from ltrain_train.policy import Policies
from ltrain_train.processes import Children, GpuTurn
from ltrain_transforms.recipe import Route

SECRET = "a secret of thirty-two characters!"
NOBODY = "http://127.0.0.1:9"
"""An address where no collector answers, so that spans stay in the spool."""
IDENTITY = Identity(run="demo", task="t1", wave=2, sample=0, rollout="abc", attempt=1, mode="train")


class Stage:
    """The gateway, its policies and its spans."""

    def __init__(self, upstream: str, home: Path) -> None:
        self.home = home
        self.identity = IDENTITY
        self.policies = Policies(home)
        self.given_up = 0
        self.publication: Publication
        self.log_lines: list[str] = []
        self.routes: tuple[Route, ...] = ()
        """Other models; set before `running`."""
        self.collects = False
        """Whether the policy's server is not managed; set before `running`."""
        self.max_adapters = 3
        """Adapters that the policy server holds at most; set before `running`."""
        self.sharing: tuple[str, ...] = ()
        """Other policies that the server has; set before `running`."""
        self.tools: ToolRules | None = None
        """The rules for the tools of requests; set before `running`."""
        self.replicas: tuple[str, ...] = ()
        """The servers behind `upstream`, which is a router; set before `running`."""
        self.data_parallel = 1
        """Replicas of the vLLM that is the policy server; set before `running`."""
        self.stages = False
        """Whether the policy server stages weights; set before `running`."""
        self.shares = False
        """Whether the policy server reads a learner's memory; set before `running`."""
        self.continues = False
        """Whether calls continue earlier ones by token ids; set before `running`."""
        self.keeps_responses = False
        """Whether clients may continue responses by their ids; set before `running`."""
        self.turn: GpuTurn | None = None
        """The lock of the GPU that vLLM shares with a learner; set before `running`."""
        self._upstream = upstream
        self._started = threading.Event()
        self._watching: list[Future[None]] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.client = GatewayClient(self.url, SECRET)
        self.http = httpx.Client(base_url=self.url, timeout=30, trust_env=False)

    def restarted(self) -> "Stage":
        """Return a stage of the same home, for the next process."""
        return Stage(self._upstream, self.home)

    @staticmethod
    def identity_of(mode: Mode) -> Identity:
        """Return the identity of an attempt in another mode."""
        return replace(IDENTITY, mode=mode)

    def key(self, identity: Identity = IDENTITY, **overrides: Any) -> str:
        claims = {"policy": "policy", "sampling": {}, "expires": Deadline.after(60), **overrides}
        return AttemptKey(identity=identity, **claims).sign(SECRET)

    def ask(
        self,
        content: str,
        *,
        identity: Identity | None = IDENTITY,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        **body: Any,
    ) -> httpx.Response:
        """Post a chat completion, for an attempt or, without identity, as production does."""
        messages = [{"role": "user", "content": content}]
        sent = {"model": "policy", "messages": messages, **body}
        return self.post("/v1/chat/completions", sent, identity=identity, key=key, headers=headers)

    def complete(
        self,
        prompt: Any,
        *,
        identity: Identity | None = IDENTITY,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        **body: Any,
    ) -> httpx.Response:
        """Post a completion of a prompt."""
        sent = {"model": "policy", "prompt": prompt, **body}
        return self.post("/v1/completions", sent, identity=identity, key=key, headers=headers)

    def post(
        self,
        path: str,
        sent: dict[str, Any],
        *,
        identity: Identity | None = IDENTITY,
        key: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        """Post a request of any API, for an attempt or for production."""
        sending = dict(headers or {})
        if identity is not None:
            path = f"/rollout/{identity.rollout}/attempt/{identity.attempt}{path}"
            sending["authorization"] = f"Bearer {key or self.key(identity)}"
        return self.http.post(path, json=sent, headers=sending)

    def spans(self) -> list[dict[str, Any]]:
        """Return the spans on disk, oldest first."""
        return spans_on_disk(self.home)

    def wait_spans(self, count: int, seconds: float = 5.0) -> list[dict[str, Any]]:
        """Return the spans on disk as soon as there are `count`, or after `seconds`."""
        end = time.monotonic() + seconds
        while len(self.spans()) < count and time.monotonic() < end:
            time.sleep(0.02)
        return self.spans()

    def otlp_requests(self) -> list[bytes]:
        """Return the export requests on disk, oldest first."""
        return requests_on_disk(self.home)

    @contextlib.contextmanager
    def running(self) -> Iterator["Stage"]:
        thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        thread.start()
        self._started.wait(10)
        try:
            yield self
        finally:
            self.client.close()
            self.http.close()
            self._server.should_exit = True
            thread.join()
            self._socket.close()

    def watch(self) -> None:
        """Hold calls while the policy server is away, as `ltrain serve --upstream` does."""
        publication = self.publication
        waiting = PolicyHost(publication.server, [publication], None, self.log_lines.append)
        watching = asyncio.run_coroutine_threadsafe(waiting.watch(), self.loop)
        self._watching.append(watching)

    async def _serve(self) -> None:
        upstream = Upstream(
            self._upstream,
            "policy",
            replicas=self.replicas,
            stages=self.stages,
            shares=self.shares,
        )
        collection = await open_collection(upstream) if self.collects else None
        self.publication = (
            CollectionPublication(self.policies, "policy", collection)
            if collection
            else self._publication(upstream)
        )
        self.loop = asyncio.get_running_loop()
        provider = create_tracer_provider(
            "ltrain-gateway", home=self.home, endpoint=NOBODY, strict=True
        )
        routes = Routes(self.routes)
        gateway = Gateway(
            [self.publication, *self._more_publications()],
            secret=SECRET,
            provider=provider,
            store_keys=Keys(self.home / "store"),
            routes=routes,
            tools=self.tools,
            turns=self._turns(),
            folder=self.home / "gateway",
            keeps_responses=self.keeps_responses,
        )
        app = StopGuard(gateway.app())
        config = uvicorn.Config(app, lifespan="off", log_level="error", ws="none")
        self._server = uvicorn.Server(config)
        self._started.set()
        await self._server.serve(sockets=[self._socket])
        for watching in self._watching:
            watching.cancel()
        gateway.stop()
        await upstream.close()
        await routes.close()
        provider.shutdown()

    def _turns(self) -> VllmTurns:
        turns = VllmTurns(self.turn)
        if self.turn is not None:
            self.turn.take()
            turns.servers.append(self.publication.server)
        return turns

    def _publication(self, upstream: Upstream) -> Publication:
        version = self.policies.current("policy")
        server = PolicyServer(
            self.policies,
            upstream,
            read_weights(self.policies, "policy", version),
            max_adapters=self.max_adapters,
            replicas=self.data_parallel,
            continues=self.continues,
            on_lost=self._on_lost,
            log=self.log_lines.append,
        )
        return Publication("policy", server, version=version)

    def _more_publications(self) -> list[Publication]:
        others = [name for name in self.policies.names() if name in self.sharing]
        return [Publication(name, self.publication.server, version=0) for name in others]

    def _on_lost(self) -> None:
        self.given_up += 1


@contextlib.contextmanager
def before_vllm(
    folder: Path, model: Path, *arguments: str, continues: bool = False
) -> Iterator[tuple[Stage, Recorder]]:
    """Run a real vLLM in fp32 with version 0 of the policy, a recording proxy, and the gateway."""
    with Children() as children:
        options = VllmOptions(dtype="float32", extra=arguments)
        log, sockets = folder / "vllm.log", folder / "sockets"
        vllm = Vllm(children, name="policy", options=options, log=log, sockets=sockets)
        vllm.start(model)
        with Recorder(vllm.socket) as recorder:
            stage = Stage(recorder.url, folder / "home")
            stage.http.timeout = 300  # a busy machine samples a few tokens a second
            stage.policies.register("policy", model)
            stage.data_parallel, stage.stages = options.replicas, options.stages
            stage.shares = options.shares
            stage.continues = continues
            with stage.running():
                yield stage, recorder


def spans_on_disk(home: Path) -> list[dict[str, Any]]:
    """Return the spans in a home's spool, oldest first."""
    spans = []
    for body in requests_on_disk(home):
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                spans += [_read_span(span, scope.scope.name) for span in scope.spans]
    return sorted(spans, key=lambda span: span["end"])


def requests_on_disk(home: Path) -> list[bytes]:
    """Return the export requests in a home's spool, oldest first."""
    bodies = []
    files = (home / "services" / "spool").glob("*.otlp")
    for file in sorted(files, key=lambda each: each.stat().st_mtime):
        with file.open("rb") as opened:
            bodies += [bytes(record.request) for record in RecordReader(opened.fileno())]
    return bodies


def _read_span(span: ProtoSpan, scope: str) -> dict[str, Any]:
    return {
        "name": span.name,
        "scope": scope,
        "kind": span.kind,
        "trace": span.trace_id.hex(),
        "parent": span.parent_span_id.hex(),
        "end": span.end_time_unix_nano,
        "status": (span.status.code, span.status.message),
        "attributes": {each.key: _attribute_value(each.value) for each in span.attributes},
    }


def _attribute_value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_attribute_value(each) for each in value.array_value.values]
    return getattr(value, kind)


def events(response: httpx.Response) -> list[Any]:
    """Return the data of a stream's events; the last is '[DONE]'."""
    assert response.headers["content-type"].startswith("text/event-stream")
    spans = [line[6:] for line in response.text.split("\n\n") if line]
    return [each if each == "[DONE]" else json.loads(each) for each in spans]
