"""The gateway's HTTP routes for agents, the runner and the loop."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
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

from ltrain_collector.access import Keys
from ltrain_collector.errors import HttpError as BadStoreKey
from ltrain_collector.http import RefusalCounts
from ltrain_instrument import attributes
from ltrain_instrument.errors import LtrainError
from ltrain_instrument.identity import Identity
from ltrain_instrument.tokens import CallSpan, Operation
from ltrain_instrument.tokens import Request as ModelRequest
from ltrain_train.gateway.apis import (
    APIS,
    COUNT_PATH,
    Answer,
    Api,
    count_tokens,
    error_body,
    parse_count,
)
from ltrain_train.gateway.attempts import AttemptCalls, AttemptRegistry
from ltrain_train.gateway.collection import CollectionServer
from ltrain_train.gateway.errors import Refused
from ltrain_train.gateway.exchange import Exchange, Recording
from ltrain_train.gateway.keys import BadKey, Keyring, RolloutClaims, bearer_key, call_key
from ltrain_train.gateway.lease_routes import LeaseRoutes
from ltrain_train.gateway.policy_exchange import PolicyExchange
from ltrain_train.gateway.publication import Publication
from ltrain_train.gateway.request import build_policy_request
from ltrain_train.gateway.routes import Routes, RouteServer
from ltrain_train.gateway.upstream import UpstreamAway, UpstreamFailed
from ltrain_train.policy import BadModel, UnknownVersion

ROLLOUT = "/rollout/{rollout}/attempt/{attempt:int}"
MAX_REQUEST_BYTES = 64 << 20
"""Maximum bytes of a request."""

_propagator = TraceContextTextMapPropagator()


class Gateway:
    """The routes of one policy."""

    def __init__(
        self,
        publication: Publication,
        *,
        secret: str,
        provider: TracerProvider,
        store_keys: Keys | None = None,
        on_tools: Callable[[], None] = lambda: None,
        routes: Routes | None = None,
        attempts: AttemptRegistry | None = None,
        collection: CollectionServer | None = None,
    ) -> None:
        """Prepare the routes.

        Args:
            publication: the policy's served version.
            secret: signs the gateway's own keys.
            provider: raises OSError for a span that it cannot write.
            store_keys: keys that `/v1` accepts; None accepts every call.
            on_tools: called for each request to the policy that names tools.
            routes: the servers of other models.
            attempts: the attempts that are closed already.
            collection: answers the policy's calls in place of a server that the gateway manages.
        """
        self.publication = publication
        self.recording = Recording()
        self._store_keys, self._on_tools = store_keys, on_tools
        self._routes = routes or Routes()
        self._collection = collection
        self.policy = publication.policy
        self.attempts = attempts or AttemptRegistry()
        self.since = time.time()
        """Unix seconds since which it answers; a runner detects a restart by it."""
        self.refusals = RefusalCounts()
        self._keys = Keyring(secret)
        self._tracer = provider.get_tracer(attributes.SCOPE_GATEWAY)

    def app(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(
            routes=[
                *self._model_routes(),
                Route(f"{ROLLOUT}/v1/models", self.models),
                Route("/v1/models", self.models),
                Route(f"{ROLLOUT}/close", self.close, methods=["POST"]),
                Route("/admin/policies/{name}", self.policy_version),
                Route("/admin/policies/{name}/current", self.publish, methods=["POST"]),
                Route("/admin/policies/{name}/waits", self.waits),
                Route("/health", self.health),
                *LeaseRoutes(self._keys).routes(),
            ],
            exception_handlers={
                Refused: _refusal_response,
                LtrainError: _user_error,
                404: _no_route,
                405: _no_route,
            },
        )

    def _model_routes(self) -> Iterator[Route]:
        for prefix in (ROLLOUT, ""):
            yield Route(f"{prefix}{COUNT_PATH}", self.count_tokens, methods=["POST"])
            for api in APIS:
                yield Route(f"{prefix}{api.path}", _ModelEndpoint(self, api), methods=["POST"])

    async def call(self, api: Api, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a call of the model, streamed or complete."""
        headers = Headers(scope=scope)
        claims = self._claims(scope, headers) if "rollout" in scope["path_params"] else None
        if claims is None:
            self._admit(headers)
        client_call = api.parse(await _read_body(Request(scope, receive)))
        operation, body = client_call.operation, client_call.body
        route: RouteServer | CollectionServer | None = self._routes.find(body["model"])
        if claims is not None:
            attempt = self.attempts.require_open(claims)  # after the body: a close may come first
        else:
            attempt = AttemptCalls(Identity(mode="prod"))
            if route is None:
                self._require_served(body["model"])
        route = route or self._collection
        if route is not None:
            request = route.request(operation, body)
        else:
            request = self._policy_request(operation, body, claims)
        context = _remote_context(headers)
        attempt.context = attempt.context or context
        identity = attempt.identity.attributes()
        span = CallSpan(self._tracer, context, SpanKind.SERVER, request, identity)
        if route is not None:
            route.describe(span.span)
        answer = client_call.answer(request)
        await self._exchange(request, span, attempt, send, answer, route).run(receive)

    def _policy_request(
        self, operation: Operation, body: dict[str, Any], claims: RolloutClaims | None
    ) -> ModelRequest:
        if body.get("tools"):
            self._on_tools()
        if claims is None:
            return build_policy_request(operation, body, self.policy, {})
        trained = claims.identity.mode == "train"
        return build_policy_request(
            operation, body, self.policy, claims.sampling, trained, claims.allow
        )

    def _exchange(
        self,
        request: ModelRequest,
        span: CallSpan,
        attempt: AttemptCalls,
        send: Send,
        answer: Answer,
        route: RouteServer | CollectionServer | None,
    ) -> Exchange:
        if route is not None:
            return Exchange(
                request,
                span,
                attempt,
                send,
                answer=answer,
                upstream=route,
                recording=self.recording,
            )
        return PolicyExchange(
            request,
            span,
            attempt,
            send,
            answer=answer,
            upstream=self.publication.upstream,
            gate=self.publication.gate,
            recording=self.recording,
            policy=self.policy,
        )

    async def count_tokens(self, request: Request) -> Response:
        """Return the number of tokens of a message's prompt; no call is made or recorded."""
        if "rollout" in request.path_params:
            self.attempts.require_open(self._claims(request.scope, request.headers))
        else:
            self._admit(request.headers)
        chat = parse_count(await _read_body(request))
        if "rollout" not in request.path_params and chat["model"] not in self._routes.models:
            self._require_served(chat["model"])
        count = await count_tokens(self.publication.upstream, chat, self._routes.models)
        return Response(count, media_type="application/json")

    async def models(self, request: Request) -> Response:
        """Return the list of models: the policy, and those with a route."""
        if "rollout" in request.path_params:
            self._claims(request.scope, request.headers)
        else:
            self._admit(request.headers)
        fields = {"object": "model", "created": 0, "owned_by": "ltrain"}
        limit = {"max_model_len": self.publication.upstream.max_model_len}
        policy = {"id": self.policy, **fields, **limit}
        others = [{"id": model, **fields} for model in self._routes.models]
        return _json_response({"object": "list", "data": [policy, *others]})

    async def close(self, request: Request) -> Response:
        """Revoke an attempt's key, cancel its calls in flight, and return its counts."""
        attempt = self.attempts.find(self._claims(request.scope, request.headers))
        first = not attempt.closed
        if attempt.in_flight_calls:
            attempt.cancelled_in_outage = not await self.publication.upstream.is_healthy()
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
        return _json_response(await self.attempts.record_close(attempt, self.since))

    async def policy_version(self, request: Request) -> Response:
        """Return the served version."""
        self._admin(request)
        version = self.publication.require_version()
        path = self.publication.policies.path(self.policy, version)
        return _json_response({"policy": self.policy, "current": version, "path": str(path)})

    async def publish(self, request: Request) -> Response:
        """Load a version into the policy server and, unless told otherwise, make it current."""
        self._admin(request)
        version, current = await _parse_publication(request)
        seconds = await self.publication.publish(version, current=current)
        return _json_response({"policy": self.policy, "current": version, "seconds": seconds})

    async def waits(self, request: Request) -> Response:
        """Return how long the calls of each open attempt waited at the shut gate."""
        self._admin(request)
        return _json_response({"seconds": self.attempts.waits()})

    async def health(self, request: Request) -> Response:
        """Return whether the gateway answers calls and records their spans; 503 while they wait."""
        gate = self.publication.gate
        status = HTTPStatus.OK if gate.is_open else HTTPStatus.SERVICE_UNAVAILABLE
        return _json_response(
            {
                "status": "ready" if gate.is_open else "waiting",
                "reason": gate.reason,
                "policy": self.policy,
                "version": self.publication.version,
                "max_model_len": self.publication.upstream.max_model_len,
                "in_flight": gate.in_flight,
                "recording": self.recording.error or "ok",
                "blocked": self.refusals.by_reason(),
            },
            status,
        )

    def _claims(self, scope: Scope, headers: Headers) -> RolloutClaims:
        claims = self._keys.verify_rollout_key(call_key(headers))
        identity, path = claims.identity, scope["path_params"]
        if (identity.rollout, identity.attempt) != (path["rollout"], path["attempt"]):
            raise BadKey(
                f"The key is for attempt {identity.attempt} of rollout {identity.rollout}, but the "
                f"path is of attempt {path['attempt']} of rollout {path['rollout']}. Use the base "
                "URL that came with the key."
            )
        self._require_served(claims.policy)
        return claims

    def _admit(self, headers: Headers) -> None:
        """Check the key of a production call, if the store has keys.

        Raises:
            BadKey: when the call has no valid key, or one that is bound to a rollout or a run.
        """
        if self._store_keys is None or not self._store_keys.requires_key:
            return
        try:
            key = headers.get("x-api-key")
            grant = self._store_keys.require_key(
                {"authorization": f"Bearer {key}", **headers} if key else headers
            )
        except BadStoreKey as error:
            raise BadKey(
                f"{error} This store requires keys, so /v1 needs a key of any role: "
                "'Authorization: Bearer KEY'."
            ) from error
        if grant.bound:
            raise BadKey(
                "A key that is bound to a rollout or a run is not accepted at /v1. Use the base "
                "URL and the key that the runner passed to the attempt."
            )

    def _admin(self, request: Request) -> None:
        self._keys.verify_admin_key(bearer_key(request.headers.get("authorization")))
        self._require_served(request.path_params["name"])

    def _require_served(self, name: str) -> None:
        if name != self.policy:
            raise Refused(
                HTTPStatus.NOT_FOUND,
                f"This gateway has no model '{name}'. "
                f"Choose from: {', '.join([self.policy, *self._routes.models])}.",
            )


class _ModelEndpoint:
    """A route of the model as an ASGI application: it streams and notices a disconnect."""

    def __init__(self, gateway: Gateway, api: Api) -> None:
        self._gateway, self._api = gateway, api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):
            await self._gateway.call(self._api, scope, receive, send)


def _remote_context(headers: Mapping[str, str]) -> Context:
    """Return the trace context of a request's traceparent header."""
    return _propagator.extract(headers, context=Context())


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_REQUEST_BYTES:
            raise Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"A request has at most {MAX_REQUEST_BYTES >> 20} MiB.",
            )
    return bytes(body)


async def _parse_publication(request: Request) -> tuple[int, bool]:
    """Return the version of a request, and whether it becomes the current one."""
    try:
        content = orjson.loads(await request.body())
        version, current = content["version"], content.get("current", True)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        version, current = None, True
    if not isinstance(version, int) or not isinstance(current, bool):
        raise Refused(
            HTTPStatus.BAD_REQUEST,
            'The request names no version. Send a JSON object such as {"version": 3}.',
        )
    return version, current


def _json_response(content: object, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


STATUS_OF: dict[type[Exception], HTTPStatus] = {
    BadKey: HTTPStatus.UNAUTHORIZED,
    UnknownVersion: HTTPStatus.NOT_FOUND,
    BadModel: HTTPStatus.UNPROCESSABLE_ENTITY,
    UpstreamAway: HTTPStatus.SERVICE_UNAVAILABLE,
    UpstreamFailed: HTTPStatus.BAD_GATEWAY,
}


def _refusal_response(request: Request, error: Exception) -> Response:
    status = error.status if isinstance(error, Refused) else HTTPStatus.INTERNAL_SERVER_ERROR
    body = error.body if isinstance(error, Refused) else b""
    body = error_body(request.url.path, status, body)
    return Response(body, status, media_type="application/json")


def _user_error(request: Request, error: Exception) -> Response:
    status = STATUS_OF.get(type(error), HTTPStatus.INTERNAL_SERVER_ERROR)
    return _refusal_response(request, Refused(status, str(error)))


def _no_route(request: Request, error: Exception) -> Response:
    sentence = (
        f"The gateway has no {request.method} {request.url.path}. It answers POST "
        f"{', '.join(api.path for api in APIS)} and GET /v1/models, and all of them under "
        "/rollout/<rollout>/attempt/<n>."
    )
    return _refusal_response(request, Refused(HTTPStatus.NOT_FOUND, sentence))
