"""One call of the policy: it passes the gate, and outages of the policy server are not its fault.

* If a healthy policy server fails on a request, the request is at fault: status 400. During an
  outage of the server the call waits; if it stays unanswered, it is counted as an outage failure.
* If the candidate of a trial fails on a request, the current version answers in its place.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Any, Literal

import aiohttp
import orjson
from opentelemetry.trace import Span, Tracer
from starlette.types import Receive

from ltrain_collector.access import AttemptKey
from ltrain_instrument import attributes
from ltrain_instrument.allow import Allow
from ltrain_instrument.tokens import Request, build_request
from ltrain_train.gateway.apis import (
    NEUTRAL_SAMPLING,
    ClientCall,
    bad_request,
    corrected_fields,
    error_message,
    parse_error,
)
from ltrain_train.gateway.continuation import Continuation
from ltrain_train.gateway.errors import Refused
from ltrain_train.gateway.exchange import Call, Exchange, ServerFailed
from ltrain_train.gateway.serving.applied_constraints import NotReplayable, RequestFault
from ltrain_train.gateway.serving.canary import Assignment
from ltrain_train.gateway.serving.publication import Publication, ServedVersion
from ltrain_train.gateway.serving.upstream import UpstreamAway, read_error
from ltrain_train.gateway.shadow import shadow_call, stay
from ltrain_train.gateway.trainable_requests import relax, require_trainable

TOO_LONG = re.compile(r"maximum (context|model) length|max_model_len")
"""The error of vLLM for a request with more tokens than it serves."""
LENGTH_SETTING = (
    "The limit is serve.max_model_len in the recipe (`ltrain serve --max-model-len`); unset, it is "
    "as many tokens as the model allows and the memory holds."
)
MAX_TOKEN_CHARS = 256
"""Characters that no token exceeds; some vocabularies have tokens of 128 spaces."""
DETECTION_DELAY = 0.5
"""Seconds until the gate shuts after the policy server died."""
CONNECTION_CLOSED = (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)
"""Errors of a request on a connection that the server closed, perhaps while it was idle."""


class PolicyModel:
    """A policy as a model that agents call; a rollout key imposes its sampling on the requests."""

    def __init__(
        self, publication: Publication, on_tools: Callable[[], None], tracer: Tracer
    ) -> None:
        """Wrap a publication.

        Args:
            on_tools: called for each request that names tools.
            tracer: records the calls that a candidate answers in the shadow.
        """
        self._publication, self._on_tools, self._tracer = publication, on_tools, tracer

    def request(self, call: ClientCall, claims: AttemptKey | None) -> Request:
        """Return the request with the sampling of the key."""
        _require_fit(call.body, self._publication.upstream.max_model_len)
        if call.body.get("tools"):
            self._on_tools()
        sampling = claims.sampling_of(self._publication.policy) if claims else {}
        relaxed: dict[str, Any] = {}
        if claims is not None and claims.constrained == "relaxed" and call.operation == "chat":
            body, relaxed = relax(call.body)
            call = replace(call, body=body)
        if claims is not None and claims.identity.mode == "train":
            chosen = {name: value for name, value in call.body.items() if name not in sampling}
            require_trainable(chosen, claims.allow, claims.constrained)
        request = _impose_sampling(call, self._publication.upstream.model, sampling)
        if relaxed:
            request = replace(request, overridden={**request.overridden, **relaxed})
        hides_model = self._publication.server.adapters.limit > 0
        return replace(request, hides_model=True) if hides_model else request

    def describe(self, span: Span) -> None:
        """Set nothing: the exchange sets the version when the call has passed the gate."""

    def exchange(self, call: Call) -> Exchange:
        """Return the exchange that passes the policy's gate."""
        assigned = self._assign(call)
        continuation, turns = None, self._publication.server.known_turns
        if turns is not None and call.claims and call.request.operation == "chat":
            policy, identity = self._publication.policy, call.claims.identity
            continuation = Continuation(turns, identity, policy, call.request.body)
        exchange = PolicyExchange(call, self._publication, continuation)
        exchange.can_fall_back = assigned.version not in (None, self._publication.served)
        if assigned.shadow is not None:
            exchange.on_end = partial(self._answer_in_shadow, call, assigned.shadow)
        return exchange

    def _assign(self, call: Call) -> Assignment:
        """Assign a call of production to the candidate, or to the current version."""
        publication, attempt = self._publication, call.attempt
        if call.claims is not None or attempt.pinned:
            return Assignment()
        unit = publication.units.date(call.unit())
        if (canary := publication.canary) is None:
            return Assignment()
        assigned = canary.assign(unit, call.span.span)
        if assigned.version is not None:
            attempt.versions[publication.policy] = assigned.version
        return assigned

    def _answer_in_shadow(self, call: Call, known: Mapping[str, str]) -> None:
        """Let the candidate answer a call of a user, too."""
        canary = self._publication.canary
        if canary is None or canary.deployment.experiment != known[attributes.EXPERIMENT]:
            return  # the trial has ended
        policy, version = self._publication.policy, canary.deployment.version
        shadowed = shadow_call(call, policy, version, known, self._tracer)
        canary.answer_in_shadow(PolicyExchange(shadowed, self._publication).run(stay))


class PolicyExchange(Exchange):
    """Runs one call of the policy until its span has ended."""

    def __init__(
        self, call: Call, publication: Publication, continuation: Continuation | None = None
    ) -> None:
        upstream = publication.upstream
        super().__init__(call, upstream)
        self._server, self._publication, self.gate = upstream, publication, publication.gate
        self._model = call.request.body["model"]
        """The model of the server that answers."""
        self._claims, self._continuation = call.claims, continuation
        self._shut_count = self.gate.shut_count
        self._is_adapter = False
        """Whether an adapter answers the call."""
        self._in_outage = False
        """Whether the call waits for a policy server that is down, or lost its connection to it."""
        self.can_fall_back = False
        """Whether the current version answers if the one to which the call is assigned fails."""
        self.on_end: Callable[[], None] | None = None
        """Called when the call has ended."""

    async def run(self, receive: Receive) -> None:
        """Run the call until it ends or the agent disconnects."""
        try:
            await super().run(receive)
        finally:
            if self.on_end is not None:
                self.on_end()

    async def _call(self) -> None:
        """Call the server, and once more if it or the connection failed before the response."""
        try:
            await self._call_through_gate()
        except aiohttp.ClientConnectorError:  # the server died and the gate may not be shut yet
            await asyncio.sleep(DETECTION_DELAY)
            await self._call_through_gate()
        except ServerFailed:
            if self._started:
                raise
            if not self._fall_back():
                await asyncio.sleep(DETECTION_DELAY)
            await self._call_through_gate()
        except CONNECTION_CLOSED:
            await asyncio.sleep(DETECTION_DELAY)
            if self._started or await self._had_outage():  # the request itself may have killed it
                raise
            self._fall_back()
            await self._call_through_gate()

    def _fall_back(self) -> bool:
        """Leave the call to the current version; return whether another one had failed."""
        if not self.can_fall_back:
            return False
        self.can_fall_back = False
        self.attempt.versions[self._publication.policy] = self._publication.served
        self.span.span.set_attribute(attributes.EXPERIMENT_FALLBACK, True)
        return True

    async def _call_through_gate(self) -> None:
        chosen = await self._enter()
        self._shut_count = self.gate.shut_count
        try:
            self.span.set_policy(self._publication.policy, chosen.version)
            self._is_adapter = chosen.adapter is not None
            self.upstream = chosen.replica or self._server
            self._model = chosen.model
            sent = await self._choose_prompt()
            unchanged = sent == self.request.body
            self._body = self._requested if unchanged else orjson.dumps(sent)
            if await self._record_constraint(replace(self.request, body=sent)):
                await self._call_server()
        except aiohttp.ClientError:
            self._in_outage = True  # until the call is sent again, or health tells the cause
            raise
        finally:
            self._publication.leave(chosen)

    async def _choose_prompt(self) -> dict[str, Any]:
        """Return the request to the server, with the ids of its prompt if it continues a turn."""
        sent = {**self.request.body, "model": self._model}
        if self._continuation is None:
            return sent
        try:
            await self._continuation.find_prompt(self._server, self._model)
        except UpstreamAway as error:
            raise ServerFailed(str(error)) from error
        self.span.span.set_attributes(self._continuation.attributes)
        return {**sent, **self._continuation.fields}

    def _end_answered(self) -> None:
        """End the span, and remember the turn for the calls that continue it."""
        if self._continuation is not None:
            self._continuation.end(self._recorded_answer)
            self.span.span.set_attributes(self._continuation.attributes)
        super()._end_answered()

    async def _record_constraint(self, sent: Request) -> bool:
        """Record the grammar of the call on its span; return False if it refused the call."""
        try:
            found = await self._publication.server.constraints.find(sent, self._model)
        except UpstreamAway as error:
            raise ServerFailed(str(error)) from error
        except RequestFault as fault:
            await self._forward_error(fault.status, _name_setting(fault.body))
            return False
        except NotReplayable as error:
            self.span.mark_constrained()
            return not self._must_replay or await self._refuse_constrained(str(error))
        if found is None:
            return True
        if self._must_replay and self._claims and self._claims.constrained == "refused":
            return await self._refuse_constrained("train.constrained is 'refused'")
        self.span.mark_constrained(found.model_dump_json(exclude_defaults=True))
        return True

    @property
    def _must_replay(self) -> bool:
        """Whether the call is refused if its masks cannot be computed again."""
        claims = self._claims
        if claims is None or claims.identity.mode != "train":
            return False
        return Allow.CONSTRAINED not in claims.allow

    async def _refuse_constrained(self, reason: str) -> Literal[False]:
        sentence = (
            f"The policy server constrains the ids of this call, and {reason}, so the call could "
            "not be trained. Remove response_format, structured_outputs, strict tools and a forced "
            "tool_choice, set train.constrained = 'relaxed' in the recipe, or set allow = "
            '["constrained"] under [rollout].'
        )
        self._end_failed("400", sentence)
        await self._refuse(Refused(HTTPStatus.BAD_REQUEST, sentence))
        return False

    async def _enter(self) -> ServedVersion:
        self._in_outage = not self.gate.is_open
        try:
            chosen = await self._publication.enter(self.attempt)
        except Refused as refused:
            self._end_failed("version_gone", refused.message)
            raise
        self._in_outage = False
        return chosen

    async def _confirm_version(self) -> None:
        """Check that no replica has lost the weights; of an adapter the name was checked."""
        if self._is_adapter or await self._publication.server.confirm_weights():
            return
        sentence = (
            "A replica of the policy server lost its weights, so the version that answered is "
            "unknown. Send the request again."
        )
        self._end_failed("version_unknown", sentence)
        raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, sentence)

    def _check_answer(self, payload: dict[str, Any]) -> None:
        """Check the adapter that the answer names; full weights have several names."""
        model = payload.get("model", self._model)
        if self._is_adapter and model != self._model:
            raise ServerFailed(f"model '{model}' answered a call of '{self._model}'")

    def _end_cancelled(self) -> None:
        """End the span of a call that an outage may have kept from its answer."""
        if self._in_outage or not self._server.was_healthy:
            self.attempt.unanswered.add(self._digest)
        super()._end_cancelled()

    async def _handle_error(self, response: aiohttp.ClientResponse) -> None:
        """Forward an error of the request."""
        if response.status == HTTPStatus.NOT_FOUND and self._is_adapter:
            self._publication.server.lost_weights = True
            raise ServerFailed(f"the server does not have '{self._model}' any more")
        if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise ServerFailed(f"{response.status}: {error_message(await read_error(response))}")
        await self._forward_error(response.status, _name_setting(await read_error(response)))

    async def _refuse_failed(self, reason: str) -> None:
        """Refuse a failed call: 503 for an outage, which OpenAI's clients retry, else 400."""
        if await self._had_outage():
            self.attempt.unanswered.add(self._digest)
            status = HTTPStatus.SERVICE_UNAVAILABLE
            sentence = (
                f"The policy server is down ({reason}). Send the request again: if `ltrain serve` "
                "started the server, it starts it again."
            )
        else:
            status = HTTPStatus.BAD_REQUEST
            sentence = (
                f"The policy server fails on this request ({reason}) and is otherwise healthy. "
                "Change the request."
            )
        self._end_failed(
            "upstream" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "400", sentence
        )
        await self._refuse(Refused(status, sentence))

    async def _had_outage(self) -> bool:
        """Return whether the policy server died or was replaced during this call."""
        if self._gate_shut_meanwhile:
            return True
        if self._started:  # a call that had not started has already waited
            await asyncio.sleep(DETECTION_DELAY)
        lost_weights = self._publication.server.lost_weights
        return lost_weights or self._gate_shut_meanwhile or not await self._server.is_healthy()

    @property
    def _gate_shut_meanwhile(self) -> bool:
        return not self.gate.is_open or self.gate.shut_count != self._shut_count


def _require_fit(body: dict[str, Any], max_model_len: int | None) -> None:
    """Refuse a text that is certainly longer than the model's context."""
    if max_model_len is None:
        return
    prompt = body.get("prompt")
    tokens = len(prompt) if isinstance(prompt, list) else _text_length(body) // MAX_TOKEN_CHARS
    if tokens > max_model_len:
        raise bad_request(
            f"This model's maximum context length is {max_model_len} tokens. However, the request "
            f"has at least {tokens} tokens. {LENGTH_SETTING}"
        )


def _text_length(body: dict[str, Any]) -> int:
    """Return the characters of a request's prompt or messages."""
    contents = [body.get("prompt"), *(each.get("content") for each in body.get("messages", ()))]
    texts = (part.get("text") for each in contents if isinstance(each, list) for part in each)
    return sum(len(text) for text in (*contents, *texts) if isinstance(text, str))


def _name_setting(body: bytes) -> bytes:
    """Add to the error of a too long request which setting has the limit."""
    error = parse_error(body).get("error")
    if not isinstance(error, dict) or not TOO_LONG.search(str(error.get("message"))):
        return body
    return orjson.dumps({"error": error | {"message": f"{error['message']} {LENGTH_SETTING}"}})


def _impose_sampling(call: ClientCall, served: str, sampling: dict[str, float]) -> Request:
    """Return the request with this sampling; without sampling it keeps what the agent sent."""
    imposed = NEUTRAL_SAMPLING | sampling if sampling else {}
    removed = {
        name: call.body[name]
        for name in corrected_fields(call.body, everywhere=not sampling)
        if name not in imposed
    }
    overruled = {
        name: value
        for name, value in call.body.items()
        if name in imposed and value not in (None, imposed[name])
    }
    return build_request(
        call.operation,
        {name: value for name, value in call.body.items() if name not in removed},
        served_model=served,
        imposed=imposed,
        overridden=overruled | removed,
    )
