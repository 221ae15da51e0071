"""The gateway's HTTP routes for agents, the runner and the loop."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import orjson
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ltrain_collector.access import AttemptKey, Keys
from ltrain_collector.http import RefusalCounts
from ltrain_instrument import attributes
from ltrain_instrument.identity import Identity
from ltrain_instrument.tokens import CallSpan
from ltrain_train.gateway.admin_routes import AdminRoutes
from ltrain_train.gateway.apis import (
    APIS,
    COUNTS,
    RESPONSES,
    Api,
    ClientCall,
    Count,
    RequestLimits,
    bad_request,
    count_tokens,
)
from ltrain_train.gateway.attempts import AttemptCalls, AttemptRegistry
from ltrain_train.gateway.conversations import find_unit, named_agent, open_conversations
from ltrain_train.gateway.errors import Refused, json_response
from ltrain_train.gateway.exchange import RECORDER, Call, Exchange, ModelServer, Recording
from ltrain_train.gateway.kept_responses import ResponsesState
from ltrain_train.gateway.keys import BadKey, Keyring, admit_production, call_key
from ltrain_train.gateway.lease_routes import LeaseRoutes
from ltrain_train.gateway.policy_exchange import PolicyModel
from ltrain_train.gateway.refusals import EXCEPTION_HANDLERS
from ltrain_train.gateway.request_pool import (
    PRODUCTION_BYTES,
    HeldRequest,
    RequestPool,
    RequestShare,
)
from ltrain_train.gateway.routes import Routes
from ltrain_train.gateway.serving.publication import Publication
from ltrain_train.gateway.serving.publish_choice import PublishChoice
from ltrain_train.gateway.serving.served_policies import ServedPolicies
from ltrain_train.gateway.serving.turns import VllmTurns
from ltrain_train.gateway.tool_rules import ToolRules

ROLLOUT = "/rollout/{rollout}/attempt/{attempt:int}"

_propagator = TraceContextTextMapPropagator()


class Gateway:
    """The routes of the policies."""

    def __init__(
        self,
        publications: Sequence[Publication],
        *,
        secret: str,
        provider: TracerProvider,
        store_keys: Keys | None = None,
        tools: ToolRules | None = None,
        routes: Routes | None = None,
        attempts: AttemptRegistry | None = None,
        publish_choice: PublishChoice | None = None,
        turns: VllmTurns | None = None,
        folder: Path | None = None,
        keeps_responses: bool = False,
    ) -> None:
        """Prepare the routes.

        Args:
            publications: the served version of each policy; the first policy is the default.
            secret: signs the gateway's own keys.
            provider: raises OSError for a span that it cannot write.
            store_keys: keys that `/v1` accepts; None accepts every call.
            tools: the rules for the tools of requests; None: unsupported ones are left out.
            routes: the servers of other models.
            attempts: the attempts that are closed already.
            publish_choice: what a learner should publish of adapters; None: merged weights.
            turns: those of vLLM on a GPU that it shares with a learner; None: it never sleeps.
            folder: where conversations are kept for the next process; None: nowhere.
            keeps_responses: whether clients may continue responses by their ids.
        """
        self.recording, limits = Recording(), RequestLimits.from_settings()
        self.requests = RequestPool(limits)
        self._responses = ResponsesState(limits, self._owner) if keeps_responses else None
        self._production = RequestShare(PRODUCTION_BYTES, rest=0.0)
        self._store_keys, self._tools = store_keys, tools or ToolRules()
        self._routes = routes or Routes()
        self.policies = ServedPolicies(publications, self._routes.models)
        self.attempts = attempts or AttemptRegistry()
        for server in self.policies.servers:
            server.pinned = self.attempts.pinned
        self.began = time.monotonic()
        """Monotonic seconds since which it answers; a runner detects a restart by them."""
        self.refusals = RefusalCounts()
        self._keys = Keyring(secret)
        self._conversations = open_conversations(provider, self.recording.require_span, folder)
        self._tracer = provider.get_tracer(attributes.SCOPE_GATEWAY)  # with the ids of the former
        self._admin = AdminRoutes(
            self._keys, self.policies, self.attempts, self._tracer, publish_choice, turns
        )

    def stop(self) -> None:
        """Write the rest of what the next process needs."""
        if self._conversations is not None:
            self._conversations.close()

    def app(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(
            routes=[
                *self._model_routes(),
                Route(f"{ROLLOUT}/v1/models", self.models),
                Route("/v1/models", self.models),
                Route(f"{ROLLOUT}/close", self.close, methods=["POST"]),
                Route("/health", self.health),
                *self._admin.routes(),
                *LeaseRoutes(self._keys).routes(),
            ],
            exception_handlers=EXCEPTION_HANDLERS,
        )

    def _model_routes(self) -> Iterator[Route]:
        for prefix in (ROLLOUT, ""):
            counts = [(each.path, partial(self.count_tokens, each)) for each in COUNTS]
            yield from (Route(prefix + path, count, methods=["POST"]) for path, count in counts)
            for api in APIS:
                yield Route(f"{prefix}{api.path}", _ModelEndpoint(self, api), methods=["POST"])
            yield from self._responses.routes(prefix) if self._responses else ()

    async def call(self, api: Api, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a call of the model, streamed or complete."""
        headers = dict(Headers(scope=scope).items())
        claims = self._authorize(scope, headers)
        attempt = self._attempt(claims)
        if claims is not None:
            await attempt.requests.slow_down()
        try:
            with await self.requests.read(Request(scope, receive), attempt.requests) as held:
                if self._responses and api is RESPONSES:
                    call = await self._responses.parse(held, _owner_of(claims, headers))
                else:
                    limits, model = self.requests.limits, scope["path_params"].get("model", "")
                    call = await held.parse(partial(api.parse, limits=limits, model=model))
                exchange = await self._begin(call, held, claims, attempt, headers, send)
                await exchange.run(receive)
        except Refused as refused:
            attempt.requests.faults += refused.status < 500  # an outage is not the agent's fault
            raise

    async def _begin(
        self,
        client_call: ClientCall,
        held: HeldRequest,
        claims: AttemptKey | None,
        attempt: AttemptCalls,
        headers: Mapping[str, str],
        send: Send,
    ) -> Exchange:
        """Return the exchange of a request, whose span has begun."""
        self._tools.apply(client_call, attempt)
        server = self._find_server(client_call.body["model"], claims, attempt)
        context = _remote_context(headers)
        start = partial(self._start, client_call, claims, attempt, server, headers, context, send)
        exchange = await held.run(start)
        if claims is not None:
            self.attempts.require_open(claims)  # a close may have come meanwhile
        attempt.context = attempt.context or context
        return exchange

    def _attempt(self, claims: AttemptKey | None) -> AttemptCalls:
        """Return the attempt of a key, or one for a call of production."""
        if claims is None:
            return AttemptCalls(Identity(mode="prod"), requests=self._production)
        return self.attempts.find(claims)

    def _start(
        self,
        client_call: ClientCall,
        claims: AttemptKey | None,
        attempt: AttemptCalls,
        server: ModelServer,
        headers: Mapping[str, str],
        context: Context,
        send: Send,
    ) -> Exchange:
        """Start the span of a call, and return its exchange; safe in another thread."""
        request = server.request(client_call, claims)
        body = _encode(request.body)
        known = attempt.identity.attributes() | client_call.attributes | RECORDER
        placement = None
        if self._conversations is not None:
            placement = self._conversations.place(
                client_call, headers, call_key(headers), attempt.identity, context
            )
        if placement is None:
            values = known | named_agent(headers)
            span = CallSpan(self._tracer, context, SpanKind.SERVER, request, values)
        else:
            with placement.starting() as context:
                values = {**known, **placement.attributes}
                span = CallSpan(self._tracer, context, SpanKind.SERVER, request, values)
        server.describe(span.span)
        trace = span.span.get_span_context().trace_id
        unit = partial(find_unit, placement, headers, client_call.body, trace)
        answer, shared = client_call.answer(request), (self.recording, self.requests)
        return server.exchange(
            Call(request, body, claims, span, attempt, send, answer, *shared, unit, placement)
        )

    def _find_server(
        self, model: str, claims: AttemptKey | None, attempt: AttemptCalls
    ) -> ModelServer:
        """Return the server of a call of `model`."""
        if (route := self._routes.find(model)) is not None:
            return route
        if claims is not None:
            publication = self.policies.of_attempt(model, claims.policy)
        else:
            publication = self.policies.of_production(model, attempt)
        return publication.collection or PolicyModel(
            publication, self._tools.check_template, self._tracer
        )

    async def count_tokens(self, count: Count, request: Request) -> Response:
        """Return the number of tokens of a prompt; no call is made or recorded."""
        claims = self._authorize(request.scope, request.headers)
        if claims is not None:
            self.attempts.require_open(claims)
        share = self._attempt(claims).requests
        with await self.requests.read(request, share) as held:
            model = request.path_params.get("model", "")
            chat = await held.parse(partial(count.parse, limits=self.requests.limits, model=model))
            body = count.answer(await self._count(chat, claims))
        return Response(body, media_type="application/json")

    async def _count(self, chat: dict[str, Any], claims: AttemptKey | None) -> int:
        publication, model = self.policies.default, chat["model"]
        if claims is not None:
            publication = self.policies.of_attempt(model, claims.policy)
        elif model not in self._routes.models:
            publication = self.policies.require(model)
        return await count_tokens(publication.upstream, chat, self._routes.models)

    async def models(self, request: Request) -> Response:
        """Return the list of models: the policies, and those with a route."""
        self._authorize(request.scope, request.headers)
        fields = {"object": "model", "created": 0, "owned_by": "ltrain"}
        policies = [
            {"id": each.policy, **fields, "max_model_len": each.upstream.max_model_len}
            for each in self.policies.publications
        ]
        others = [{"id": model, **fields} for model in self._routes.models]
        return json_response({"object": "list", "data": [*policies, *others]})

    async def close(self, request: Request) -> Response:
        """Revoke an attempt's key, cancel its calls in flight, and return its counts."""
        attempt = self.attempts.find(self._claims(request.scope, request.headers))
        first = not attempt.closed
        await attempt.close()
        if first:
            counts = {attributes.SPANS: attempt.spans, attributes.LLM_CALLS: attempt.llm_calls}
            span = self._tracer.start_span(
                attributes.SPAN_PROCESS,
                attempt.context or _remote_context(request.headers),
                SpanKind.INTERNAL,
                {**attempt.identity.attributes(), **counts},
            )
            self.recording.require_span(span.end)
        return json_response(
            await self.attempts.record_close(attempt, time.monotonic() - self.began)
        )

    async def health(self, request: Request) -> Response:
        """Return whether the gateway answers calls and records their spans; 503 while they wait."""
        policies, default = self.policies, self.policies.default
        status = HTTPStatus.OK if policies.is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        return json_response(
            {
                "status": "ready" if policies.is_ready else "waiting",
                "reason": policies.waiting_for,
                "policy": default.policy,
                "version": default.version,
                "policies": {each.policy: each.version for each in policies.publications},
                "max_model_len": default.upstream.max_model_len,
                "in_flight": sum(server.gate.in_flight for server in policies.servers),
                "recording": self.recording.fault or "ok",
                "blocked": self.refusals.by_reason(),
            },
            status,
        )

    def _authorize(self, scope: Scope, headers: Mapping[str, str]) -> AttemptKey | None:
        """Check the key of a call, and return its claims; None for a call of production."""
        if "rollout" in scope["path_params"]:
            return self._claims(scope, headers)
        admit_production(self._store_keys, headers)
        return None

    def _owner(self, scope: Scope, headers: Mapping[str, str]) -> str:
        """Check the key of a request, and return whose responses it may name."""
        claims = self._authorize(scope, headers)
        if claims is not None:
            self.attempts.require_open(claims)
        return _owner_of(claims, headers)

    def _claims(self, scope: Scope, headers: Mapping[str, str]) -> AttemptKey:
        claims = self._keys.verify_attempt(call_key(headers))
        identity, path = claims.identity, scope["path_params"]
        if (identity.rollout, identity.attempt) != (path["rollout"], path["attempt"]):
            raise BadKey(
                f"The key is for attempt {identity.attempt} of rollout {identity.rollout}, but the "
                f"path is of attempt {path['attempt']} of rollout {path['rollout']}. Use the base "
                "URL that came with the key."
            )
        self.policies.require(claims.policy)
        return claims


class _ModelEndpoint:
    """A route of the model as an ASGI application: it streams and notices a disconnect."""

    def __init__(self, gateway: Gateway, api: Api) -> None:
        self._gateway, self._api = gateway, api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):
            await self._gateway.call(self._api, scope, receive, send)


def _encode(body: dict[str, Any]) -> bytes:
    """Return the JSON of a request, which is refused if a number or text of it has none."""
    try:
        return orjson.dumps(body)
    except TypeError as error:
        raise bad_request(
            f"The request cannot be encoded as JSON: {error}. Send valid JSON numbers and text."
        ) from error


def _owner_of(claims: AttemptKey | None, headers: Mapping[str, str]) -> str:
    """Return the attempt of a request, else its key."""
    if claims is None:
        return f"key {call_key(headers)}"
    return f"attempt {claims.identity.rollout}.{claims.identity.attempt}"


def _remote_context(headers: Mapping[str, str]) -> Context:
    """Return the trace context of a request's traceparent header."""
    return _propagator.extract(headers, context=Context())
