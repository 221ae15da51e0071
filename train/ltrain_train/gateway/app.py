"""The gateway's routes: what agents, the runner and the loop may ask for, and nothing else."""

import time
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus

import orjson
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ltrain_collector.asgi import HttpError as BadStoreKey
from ltrain_collector.keys import Keys
from ltrain_collector.listen.refusals import RefusalCounts
from ltrain_instrument import attributes
from ltrain_instrument.errors import LtrainError
from ltrain_instrument.identity import Identity
from ltrain_instrument.tokens.span import CallSpan
from ltrain_train.gateway.attempts import Attempt, Attempts
from ltrain_train.gateway.exchange import Exchange
from ltrain_train.gateway.keys import BadKey, Keyring, RolloutClaims, bearer
from ltrain_train.gateway.publication import Publication
from ltrain_train.gateway.recording import Recording
from ltrain_train.gateway.refusal import Refused
from ltrain_train.gateway.request import read_request
from ltrain_train.gateway.upstream import UpstreamAway, UpstreamFailed
from ltrain_train.policy.errors import BadModel, UnknownVersion

ROLLOUT = "/rollout/{rollout}/attempt/{attempt:int}"
LARGEST = 64 << 20
"""Bytes of a request."""

_propagator = TraceContextTextMapPropagator()


class Gateway:
    """One policy behind its routes."""

    def __init__(
        self,
        publication: Publication,
        *,
        secret: str,
        provider: TracerProvider,
        store_keys: Keys | None = None,
    ) -> None:
        """`provider` raises OSError for a span that it cannot write; `store_keys` open `/v1`."""
        self.publication = publication
        self.recording = Recording()
        self._store_keys = store_keys
        self.policy = publication.policy
        self.attempts = Attempts()
        self.since = time.time()
        """Unix seconds from which it answers: a runner learns that it was started again."""
        self.refusals = RefusalCounts()
        self._keys = Keyring(secret)
        self._tracer = provider.get_tracer(attributes.SCOPE_GATEWAY)

    def app(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(
            routes=[
                Route(f"{ROLLOUT}/v1/chat/completions", _Chat(self), methods=["POST"]),
                Route("/v1/chat/completions", _Chat(self), methods=["POST"]),
                Route(f"{ROLLOUT}/v1/models", self.models),
                Route("/v1/models", self.models),
                Route(f"{ROLLOUT}/close", self.close, methods=["POST"]),
                Route("/admin/policies/{name}", self.policy_state),
                Route("/admin/policies/{name}/current", self.publish, methods=["POST"]),
                Route("/health", self.health),
            ],
            exception_handlers={
                Refused: _refused,
                LtrainError: _mendable,
                404: _no_route,
                405: _no_route,
            },
        )

    async def chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a chat completion, as a stream or whole."""
        headers = Headers(scope=scope)
        if "rollout" in scope["path_params"]:
            claims = self._claims(scope, headers)
            trained, allowed = claims.identity.mode == "train", claims.allow
            raw = await _body(receive)
            attempt = self.attempts.open(claims)  # it may have been closed while the body came
            request = read_request(raw, self.policy, claims.sampling, trained, allowed)
        else:
            self._admit(headers)
            attempt = Attempt(Identity(mode="prod"))
            request = read_request(await _body(receive), self.policy, {})
            self._require_served(request.model)
        context = _remote_context(headers)
        attempt.context = attempt.context or context
        identity = attempt.identity.attributes()
        span = CallSpan(self._tracer, context, SpanKind.SERVER, request, identity)
        publication = self.publication
        await Exchange(
            request,
            span,
            attempt,
            send,
            upstream=publication.upstream,
            gate=publication.gate,
            recording=self.recording,
            policy=self.policy,
        ).run(receive)

    async def models(self, request: Request) -> Response:
        """Return the one model there is."""
        if "rollout" in request.path_params:
            self._claims(request.scope, request.headers)
        else:
            self._admit(request.headers)
        model = {"id": self.policy, "object": "model", "created": 0, "owned_by": "ltrain"}
        return _json({"object": "list", "data": [model]})

    async def close(self, request: Request) -> Response:
        """Revoke an attempt's key, cut its calls, and return how many there were."""
        attempt = self.attempts.of(self._claims(request.scope, request.headers))
        first = not attempt.closed
        if attempt.flying:
            attempt.cut_by_outage = not await self.publication.upstream.healthy()
        await attempt.close()
        if first:
            counts = {attributes.SPANS: attempt.spans, attributes.LLM_CALLS: attempt.llm_calls}
            span = self._tracer.start_span(
                attributes.SPAN_PROCESS,
                attempt.context or _remote_context(request.headers),
                SpanKind.INTERNAL,
                {**attempt.identity.attributes(), **counts},
            )
            self.recording.require(span.end)
        return _json({**attempt.counts, "since": self.since})

    async def policy_state(self, request: Request) -> Response:
        """Return which version is served."""
        self._admin(request)
        version = self.publication.gate.version
        path = self.publication.policies.path(self.policy, version)
        return _json({"policy": self.policy, "current": version, "path": str(path)})

    async def publish(self, request: Request) -> Response:
        """Load a version into the policy server and make it current."""
        self._admin(request)
        version = await _version(request)
        seconds = await self.publication.publish(version)
        return _json({"policy": self.policy, "current": version, "seconds": seconds})

    async def health(self, request: Request) -> Response:
        """Return whether calls are answered at once, and whether they are recorded."""
        gate = self.publication.gate
        return _json(
            {
                "status": "ready" if gate.is_open else "waiting",
                "policy": self.policy,
                "version": gate.version,
                "in_flight": gate.in_flight,
                "recording": self.recording.trouble or "ok",
                "blocked": self.refusals.by_reason(),
            }
        )

    def _claims(self, scope: Scope, headers: Headers) -> RolloutClaims:
        claims = self._keys.rollout(bearer(headers.get("authorization")))
        identity, path = claims.identity, scope["path_params"]
        if (identity.rollout, identity.attempt) != (path["rollout"], path["attempt"]):
            raise BadKey(
                f"The key is for attempt {identity.attempt} of rollout {identity.rollout}, the "
                f"path for attempt {path['attempt']} of {path['rollout']}."
            )
        self._require_served(claims.policy)
        return claims

    def _admit(self, headers: Headers) -> None:
        """Accept a call of production: where the store has keys, it shows one that was made."""
        if self._store_keys is None or not self._store_keys.requires_key:
            return
        try:
            grant = self._store_keys.require_key(headers)
        except BadStoreKey as error:
            raise BadKey(
                f"{error} The store has keys, so /v1 needs one, of any role: 'Authorization: "
                "Bearer KEY'."
            ) from error
        if grant.bound:
            raise BadKey(
                "A key that is bound to a rollout or a run does not open /v1. Use the base URL and "
                "the key that the attempt was started with."
            )

    def _admin(self, request: Request) -> None:
        self._keys.admin(bearer(request.headers.get("authorization")))
        self._require_served(request.path_params["name"])

    def _require_served(self, name: str) -> None:
        if name != self.policy:
            raise Refused(
                HTTPStatus.NOT_FOUND,
                f"This gateway has no model '{name}'. It serves the policy '{self.policy}'.",
            )


class _Chat:
    """The chat route as an ASGI application: it streams and sees the client go away itself."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ConnectionResetError):  # nobody is left to answer
            await self._gateway.chat(scope, receive, send)


def _remote_context(headers: Mapping[str, str]) -> Context:
    """Return the context of the traceparent that came with a request."""
    return _propagator.extract(headers, context=Context())


async def _body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError("the client went away before its request was whole")
        body += message.get("body", b"")
        if len(body) > LARGEST:
            raise Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"A request has at most {LARGEST >> 20} MiB."
            )
        if not message.get("more_body"):
            return bytes(body)


async def _version(request: Request) -> int:
    try:
        version = orjson.loads(await request.body())["version"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        version = None
    if not isinstance(version, int):
        raise Refused(HTTPStatus.BAD_REQUEST, 'Say which version: {"version": 3}.')
    return version


def _json(content: object) -> Response:
    return Response(orjson.dumps(content), media_type="application/json")


STATUS_OF: dict[type[Exception], HTTPStatus] = {
    BadKey: HTTPStatus.UNAUTHORIZED,
    UnknownVersion: HTTPStatus.NOT_FOUND,
    BadModel: HTTPStatus.UNPROCESSABLE_ENTITY,
    UpstreamAway: HTTPStatus.SERVICE_UNAVAILABLE,
    UpstreamFailed: HTTPStatus.BAD_GATEWAY,
}


def _refused(request: Request, error: Exception) -> Response:
    status = error.status if isinstance(error, Refused) else HTTPStatus.INTERNAL_SERVER_ERROR
    body = error.body if isinstance(error, Refused) else b""
    return Response(body, status, media_type="application/json")


def _mendable(request: Request, error: Exception) -> Response:
    status = STATUS_OF.get(type(error), HTTPStatus.INTERNAL_SERVER_ERROR)
    return _refused(request, Refused(status, str(error)))


def _no_route(request: Request, error: Exception) -> Response:
    sentence = (
        f"The gateway has no {request.method} {request.url.path}. It answers POST "
        "/v1/chat/completions and GET /v1/models, and both under /rollout/<rollout>/attempt/<n>."
    )
    return _refused(request, Refused(HTTPStatus.NOT_FOUND, sentence))
