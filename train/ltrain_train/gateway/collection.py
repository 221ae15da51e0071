"""Collection: calls are recorded while a server answers whose weights the gateway does not manage.

Any OpenAI-compatible server will do. A request at the start shows what it reports: token ids and
log-probabilities are requested only from a server that has them. The version of its model is
unknown, so its calls are not trained.
"""

import dataclasses
import os
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus

import orjson
from opentelemetry.trace import Span

from ltrain_collector.access import AttemptKey
from ltrain_instrument import attributes
from ltrain_instrument.errors import LtrainError
from ltrain_instrument.tokens import Request, build_request
from ltrain_train.gateway.apis import ClientCall, error_message
from ltrain_train.gateway.errors import Refused
from ltrain_train.gateway.exchange import Call, Exchange
from ltrain_train.gateway.serving.adapters import Adapters
from ltrain_train.gateway.serving.gate import Gate
from ltrain_train.gateway.serving.policy_server import PolicyServer
from ltrain_train.gateway.serving.publication import Publication
from ltrain_train.gateway.serving.upstream import Upstream, UpstreamFailed
from ltrain_train.policy import Policies, SharedWeights
from ltrain_transforms.deployment_file import Deployment, Stage

TOKEN_IDS, LOGPROBS, VERSION = "token_ids", "logprobs", "version"
REQUEST_FIELDS = {TOKEN_IDS: "return_token_ids", LOGPROBS: "logprobs"}
"""The field of a request for each property of the tokens."""
MAX_PROBE_TOKENS = 16
"""Maximum tokens of the answer to the request at the start; a reasoning model needs more than 1."""
UNSUPPORTED = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
"""Statuses with which a server refuses a field that it does not know."""
LOSSES = {
    TOKEN_IDS: "token ids",
    LOGPROBS: "log-probabilities",
    VERSION: "the version of the model",
}


class UnsetKey(LtrainError, LookupError):
    """The environment variable with the server's key is not set."""


class CollectionServer:
    """A server that answers calls of the policy, and what it does not report of them."""

    def __init__(self, upstream: Upstream, reported: frozenset[str]) -> None:
        self.upstream = upstream
        self.post = upstream.post
        self.missing = tuple(name for name in LOSSES if name not in reported)
        """The fields that its answers lack, as in `ltrain.unavailable`."""

    @property
    def notice(self) -> str:
        """The loss, as a sentence for the start."""
        losses = ", ".join(LOSSES[name] for name in self.missing)
        return (
            f"model '{self.upstream.model}' of {self.upstream.address} has no version here: its "
            f"calls are recorded and not trained. The server does not report: {losses}"
        )

    def request(self, call: ClientCall, claims: AttemptKey | None) -> Request:
        """Return the request that the server gets, without fields that it does not support."""
        body = call.body
        request = build_request(call.operation, body, served_model=self.upstream.model)
        added = {field for name, field in REQUEST_FIELDS.items() if name in self.missing}
        kept = {name: value for name, value in request.body.items() if name not in added}
        sent = kept | {name: body[name] for name in added if name in body}
        provider = "openai" if TOKEN_IDS in self.missing else request.provider
        return dataclasses.replace(request, body=sent, provider=provider)

    def describe(self, span: Span) -> None:
        """Set on a call's span whose model answers, and what the server does not report."""
        span.set_attribute(attributes.POLICY_NAME, self.upstream.model)
        span.set_attribute(attributes.UNAVAILABLE, list(self.missing))

    def exchange(self, call: Call) -> Exchange:
        """Return the exchange that forwards a call."""
        return Exchange(call, self)


class CollectedServer(PolicyServer):
    """A policy server without weights of ours: it holds no adapters either."""

    def __init__(self, policies: Policies, upstream: Upstream) -> None:
        self.policies, self.upstream = policies, upstream
        self.gate, self.adapters = Gate(), Adapters(upstream, policies, limit=0)
        self.publications, self.pinned = [], tuple


class CollectionPublication(Publication):
    """A policy without versions: nothing can be published."""

    def __init__(self, policies: Policies, policy: str, collection: CollectionServer) -> None:
        self.policies, self.policy, self.collection = policies, policy, collection
        self.canary = None
        self.server = CollectedServer(policies, collection.upstream)

    @property
    def version(self) -> int | None:
        """None: the server's weights are its own."""
        return None

    def require_version(self) -> int:
        """Raise Refused: there is none."""
        raise self._refusal()

    async def offer(self, shared: SharedWeights) -> None:
        """Raise Refused: the gateway cannot replace the weights of this server."""
        raise self._refusal()

    async def load(
        self,
        version: int,
        *,
        current: bool = True,
        shared: SharedWeights | None = None,
        promotion: Deployment | None = None,
    ) -> float:
        """Raise Refused: the gateway cannot replace the weights of this server."""
        raise self._refusal()

    async def deploy(
        self, version: int, stage: Stage, *, share: float, by: str, reason: str
    ) -> Deployment:
        """Raise Refused: the gateway cannot replace the weights of this server."""
        raise self._refusal()

    def freeze(self, by: str, reason: str) -> None:
        """Raise Refused: there is no version that could stay."""
        raise self._refusal()

    def _refusal(self) -> Refused:
        return Refused(
            HTTPStatus.CONFLICT,
            f"The gateway only collects calls of the server at {self.upstream.address}: policy "
            f"'{self.policy}' has no version, and none can be loaded. Start `ltrain serve` with a "
            "model.",
        )


async def open_collection(upstream: Upstream) -> CollectionServer:
    """Return the server after a request for one short answer, which shows what it reports."""
    with suppress(UpstreamFailed):  # for `max_model_len`, which few servers have
        await upstream.models()
    for fields in _requested_fields():
        message = {"role": "user", "content": "Say OK."}
        limit = {"max_completion_tokens": MAX_PROBE_TOKENS}
        body = {"model": upstream.model, "messages": [message], **limit, **fields}
        status, answer = await upstream.complete_chat(body)
        if status == HTTPStatus.OK:
            return CollectionServer(upstream, _reported(upstream, answer))
        if status not in UNSUPPORTED:
            break
    raise UpstreamFailed(
        f"The server at {upstream.address} refused a chat completion of model '{upstream.model}' "
        f"with status {status}: {error_message(answer)}. Check --upstream, --upstream-key-env and "
        "--policy, which is the name of the model."
    )


def upstream_key(variable: str | None) -> str | None:
    """Return the key in an environment variable."""
    if variable is None:
        return None
    if not os.environ.get(variable):
        raise UnsetKey(f"The key of --upstream is not set. Set {variable} in the environment.")
    return os.environ[variable]


def _requested_fields() -> Iterator[dict[str, bool]]:
    """Yield fewer fields each time; some servers refuse fields that they do not know."""
    yield {"return_token_ids": True, "logprobs": True}
    yield {"logprobs": True}
    yield {}


def _reported(upstream: Upstream, answer: bytes) -> frozenset[str]:
    """Return what an answer has; it may have no tokens, so an empty list counts."""
    try:
        payload = orjson.loads(answer)
        (choice,) = payload["choices"]
        found = {
            TOKEN_IDS: None not in (payload.get("prompt_token_ids"), choice.get("token_ids")),
            LOGPROBS: choice.get("logprobs") is not None,
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        text = " ".join(answer[:80].decode(errors="replace").split())
        raise UpstreamFailed(
            f"The server at {upstream.address} answers no chat completion, but '{text}'. Check "
            "--upstream: it is the URL of an OpenAI-compatible server."
        ) from error
    return frozenset(name for name, is_reported in found.items() if is_reported)
