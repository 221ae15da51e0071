"""One call: the agent's request to the policy server, the answer back, the span in between.

* The span is on disk before the last byte of the answer is sent: before the body, or in a stream
  before the chunk that ends it.
* A span that cannot be written ends the call with status 503, a stream with an error.
* An agent that goes away ends the generation, and the span says so.
* A request that the policy server fails on while it is well is the agent's mistake: status 400.
  Where the server is away, the call waits, and what it does not get is counted as an outage's.
"""

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import sha256
from http import HTTPStatus
from typing import Any

import aiohttp
import orjson
from starlette.types import Message, Receive, Send

from ltrain_instrument.tokens.answer import ModelResponse
from ltrain_instrument.tokens.events import DONE
from ltrain_instrument.tokens.fields import parse_and_replace
from ltrain_instrument.tokens.request import Request
from ltrain_instrument.tokens.span import CallSpan
from ltrain_train.gateway.attempts import Attempt
from ltrain_train.gateway.gate import Gate
from ltrain_train.gateway.recording import Recording
from ltrain_train.gateway.refusal import Refused, send_json
from ltrain_train.gateway.upstream import Upstream, events

STREAM_START: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8")],
}
NOTICED = 0.5
"""Seconds after which the gate is shut before a policy server that has died."""


class ServerFailed(ConnectionError):
    """The policy server answered with a status of 500 and more, or broke its answer off."""


CLOSED = (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)
"""What a request meets on a connection that the server closed, perhaps while it was idle."""


class Exchange:
    """Carries one call to its end, whatever the end is."""

    def __init__(
        self,
        request: Request,
        span: CallSpan,
        attempt: Attempt,
        send: Send,
        *,
        upstream: Upstream,
        gate: Gate,
        recording: Recording,
        policy: str,
    ) -> None:
        self.request, self.span, self.attempt = request, span, attempt
        self.upstream, self.gate, self.policy = upstream, gate, policy
        self.recording = recording
        self._body = orjson.dumps(request.body)
        self._send = send
        self._shuts = gate.shuts
        self._away = False
        """Whether the policy server is away while it waits."""
        self._answer = ModelResponse()
        self._started = False
        """Whether the agent has been sent a status."""

    async def run(self, receive: Receive) -> None:
        """Exchange, until the end or until the agent goes away."""
        call = asyncio.ensure_future(self._guarded())
        gone = asyncio.ensure_future(_gone(receive))
        self.attempt.flying.add(call)
        try:
            await asyncio.wait((call, gone), return_when=asyncio.FIRST_COMPLETED)
            if not call.done():  # perhaps it went because nobody answers
                self._away = self._away or not await self.upstream.healthy()
        finally:
            if not self.span.ended:
                call.cancel()
            gone.cancel()
            await asyncio.wait((call,))
            self.attempt.flying.discard(call)
            if call.cancelled() and self.attempt.closed:
                await self._refuse(Refused(HTTPStatus.FORBIDDEN, "The attempt has been closed."))
        if not call.cancelled():
            call.result()  # a defect of ours is to be seen in the log

    async def _guarded(self) -> None:
        try:
            await self._answered_at_last()
        except Refused as refused:  # the answer could not be recorded
            self.attempt.unanswered.add(self._digest)
            await self._refuse(refused)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            await self._server_failed(f"{type(error).__name__}: {error}")
        finally:
            if not self.span.ended:
                self._cut()

    async def _answered_at_last(self) -> None:
        """Ask twice where the server or the connection failed before the answer began."""
        try:
            await self._through_gate()
        except aiohttp.ClientConnectorError:  # dead, and perhaps not yet noticed: wait for it
            with self.attempt.waiting():
                await asyncio.sleep(NOTICED)
            await self._through_gate()
        except ServerFailed:
            if self._started:
                raise
            await asyncio.sleep(NOTICED)
            await self._through_gate()
        except CLOSED:
            await asyncio.sleep(NOTICED)
            if self._started or await self._is_away():  # the request itself may have killed it
                raise
            await self._through_gate()

    async def _through_gate(self) -> None:
        version = await self._enter()
        self._shuts = self.gate.shuts
        try:
            self.span.set_policy(self.policy, version)
            await self._ask()
        finally:
            self.gate.leave()

    async def _enter(self) -> int:
        if self.gate.is_open:
            return await self.gate.enter()
        self._away = True
        with self.attempt.waiting():
            version = await self.gate.enter()
        self._away = False
        return version

    async def _ask(self) -> None:
        async with self.upstream.chat(self._body) as response:
            if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise ServerFailed(f"{response.status}: {_message(_loads(await response.read()))}")
            if response.status != HTTPStatus.OK:
                await self._pass_on(response)
            elif self.request.stream:
                await self._stream(response)
            else:
                await self._whole(response)

    async def _whole(self, response: aiohttp.ClientResponse) -> None:
        payload, shown = parse_and_replace(
            (await response.read()).decode(), self.request.replacements
        )
        self._answer.add_payload(payload)
        self._answered()
        await self._begin(send_json(self._send, 200, shown.encode()))

    async def _stream(self, response: aiohttp.ClientResponse) -> None:
        await self._begin(self._send(STREAM_START))
        held: list[bytes] = []
        async for event in events(response):  # to its end, or the connection cannot be used again
            if event == DONE:
                await self._finish(held)
                continue
            payload, shown = parse_and_replace(event.decode(), self.request.replacements)
            if "error" in payload:
                raise ServerFailed(_message(payload))
            self._answer.add_payload(payload)
            if self.request.is_token_only_chunk(payload):
                continue
            held.append(_event(shown.encode()))
            if self._answer.finished < self.request.choices:
                await self._send_body(held.pop(), more=True)
        if not self.span.ended:
            await self._finish(held)

    async def _finish(self, held: list[bytes]) -> None:
        if self._answer.finished < self.request.choices:
            raise ConnectionError("the stream ended before the answer")
        self._answered()
        await self._send_body(b"".join(held) + _event(DONE), more=False)

    async def _pass_on(self, response: aiohttp.ClientResponse) -> None:
        body = await response.read()
        kind, sentence = str(response.status), _message(_loads(body))
        self.recording.require(lambda: self.span.end_with_error(kind, sentence))
        self.attempt.spans += 1
        self.attempt.unanswered.discard(self._digest)
        await self._begin(send_json(self._send, response.status, body))

    async def _server_failed(self, why: str) -> None:
        """Tell an outage, which OpenAI's clients wait for, from a request that is at fault."""
        if await self._is_away():
            self.attempt.unanswered.add(self._digest)
            status = HTTPStatus.SERVICE_UNAVAILABLE
            sentence = (
                f"The policy server is away ({why}). Ask again: it is started again where ltrain "
                "runs it."
            )
        else:
            status = HTTPStatus.BAD_REQUEST
            sentence = (
                f"The policy server fails on this request ({why}) and is well otherwise. Change "
                "the request."
            )
        self._fail("upstream" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "400", sentence)
        await self._refuse(Refused(status, sentence))

    async def _is_away(self) -> bool:
        """Return whether the policy server died, or was replaced, while it had this call."""
        if self._outage:
            return True
        if self._started:  # the others have waited
            await asyncio.sleep(NOTICED)
        return self._outage or not await self.upstream.healthy()

    @property
    def _outage(self) -> bool:
        return not self.gate.is_open or self.gate.shuts != self._shuts

    async def _refuse(self, refused: Refused) -> None:
        if not self._started:
            await self._begin(refused.send(self._send))
        elif self.request.stream:
            await self._send_body(_event(refused.body), more=False)

    async def _begin(self, sending: Awaitable[None]) -> None:
        self._started = True
        await sending

    async def _send_body(self, body: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    @property
    def _digest(self) -> bytes:
        """What tells a request from others of its attempt, and is the same when it is repeated."""
        return sha256(self._body).digest()

    def _answered(self) -> None:
        """End the span before the answer's last byte.

        Raises:
            Refused: when it cannot be written.
        """
        self.recording.require(lambda: self.span.end_with_response(self._answer))
        self.attempt.spans += 1
        self.attempt.llm_calls += 1
        self.attempt.unanswered.discard(self._digest)

    def _cut(self) -> None:
        """End the span of a call that nobody waits for any more."""
        if self._away or self.attempt.cut_by_outage:
            self.attempt.unanswered.add(self._digest)
        self._end(lambda: self.span.end_with_error("cancelled", self._why(), self._answer))

    def _fail(self, kind: str, sentence: str) -> None:
        if not self.span.ended:
            self._end(lambda: self.span.end_with_error(kind, sentence))

    def _end(self, end: Callable[[], None]) -> None:
        if self.recording.end(end):
            self.attempt.spans += 1

    def _why(self) -> str:
        return "the attempt was closed" if self.attempt.closed else "the client went away"


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def _loads(body: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        found = None
    return found if isinstance(found, dict) else {"error": body[:500].decode(errors="replace")}


def _message(payload: dict[str, Any]) -> str:
    error = payload.get("error") or payload
    return str(error.get("message") if isinstance(error, dict) else error)
