"""One call: it forwards the agent's request to the policy server, and the response to the agent.

* The span is on disk before the last byte of the response is sent: before the body, or in a stream
  before the chunk that ends it.
* If the span cannot be written, the call ends with status 503, or a stream with an error event.
* If the agent disconnects, the generation is aborted and the span records that.
* If a healthy policy server fails on a request, the request is at fault: status 400. During an
  outage of the server the call waits; if it stays unanswered, it is counted as an outage failure.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from hashlib import sha256
from http import HTTPStatus
from typing import Any

import aiohttp
import orjson
from starlette.types import Message, Receive, Send

from ltrain_instrument.tokens import DONE, CallSpan, ModelResponse, Request, parse_and_replace
from ltrain_train.gateway.attempts import AttemptCalls
from ltrain_train.gateway.errors import Refused, send_json
from ltrain_train.gateway.gate import Gate
from ltrain_train.gateway.upstream import Upstream, read_events

STREAM_START: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8")],
}
TOO_LONG = re.compile(r"maximum (context|model) length|max_model_len")
"""What vLLM says of a request with more tokens than it serves."""
LENGTH_SETTING = (
    "The limit is serve.max_model_len in the recipe (`ltrain serve --max-model-len`); unset, it is "
    "as many tokens as the model allows and the memory holds."
)
DETECTION_DELAY = 0.5
"""Seconds until the gate shuts after the policy server died."""


class ServerFailed(ConnectionError):
    """The policy server answered with a status of 500 or above, or broke off its response."""


CONNECTION_CLOSED = (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)
"""Errors of a request on a connection that the server closed, perhaps while it was idle."""


class Recording:
    """Ends spans and remembers whether the last one was written to the spool."""

    def __init__(self) -> None:
        self.error = ""
        """Why the last span could not be written; '' if it was."""

    def end_span(self, end_span: Callable[[], None]) -> bool:
        """End a span and return whether it was written."""
        try:
            end_span()
        except OSError as error:
            self.error = str(error)
            return False
        self.error = ""
        return True

    def require_span(self, end_span: Callable[[], None]) -> None:
        """End a span that must be written.

        Raises:
            Refused: 503, when the span cannot be written.
        """
        if not self.end_span(end_span):
            raise Refused(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"The gateway cannot record the call, so it sends no response: {self.error}. Free "
                "space on the disk, or start the collector so that the spool empties.",
            )


class Exchange:
    """Runs one call until its span has ended."""

    def __init__(
        self,
        request: Request,
        span: CallSpan,
        attempt: AttemptCalls,
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
        self._shut_count = gate.shut_count
        self._in_outage = False
        """Whether the call waits for a policy server that is down."""
        self._recorded_answer = ModelResponse()
        self._started = False
        """Whether the response's status has been sent to the agent."""

    async def run(self, receive: Receive) -> None:
        """Run the call until it ends or the agent disconnects."""
        call = asyncio.ensure_future(self._run_call())
        disconnect = asyncio.ensure_future(_wait_for_disconnect(receive))
        self.attempt.in_flight_calls.add(call)
        try:
            await asyncio.wait((call, disconnect), return_when=asyncio.FIRST_COMPLETED)
            if not call.done():  # an outage may be why the agent disconnected
                self._in_outage = self._in_outage or not await self.upstream.is_healthy()
        finally:
            if not self.span.ended:
                call.cancel()
            disconnect.cancel()
            await asyncio.wait((call,))
            self.attempt.in_flight_calls.discard(call)
            if call.cancelled() and self.attempt.closed:
                await self._refuse(Refused(HTTPStatus.FORBIDDEN, "The attempt has been closed."))
        if not call.cancelled():
            call.result()  # raises an unexpected error, so that the log shows it

    async def _run_call(self) -> None:
        try:
            await self._call_with_retry()
        except Refused as refused:  # the span could not be written
            self.attempt.unanswered.add(self._digest)
            await self._refuse(refused)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            await self._refuse_failed(f"{type(error).__name__}: {error}")
        finally:
            if not self.span.ended:
                self._end_cancelled()

    async def _call_with_retry(self) -> None:
        """Call the server, and once more if it or the connection failed before the response."""
        try:
            await self._call_through_gate()
        except aiohttp.ClientConnectorError:  # the server died and the gate may not be shut yet
            with self.attempt.count_waiting():
                await asyncio.sleep(DETECTION_DELAY)
            await self._call_through_gate()
        except ServerFailed:
            if self._started:
                raise
            await asyncio.sleep(DETECTION_DELAY)
            await self._call_through_gate()
        except CONNECTION_CLOSED:
            await asyncio.sleep(DETECTION_DELAY)
            if self._started or await self._had_outage():  # the request itself may have killed it
                raise
            await self._call_through_gate()

    async def _call_through_gate(self) -> None:
        version = await self._enter()
        self._shut_count = self.gate.shut_count
        try:
            self.span.set_policy(self.policy, version)
            await self._call_server()
        finally:
            self.gate.leave()

    async def _enter(self) -> int:
        if self.gate.is_open:
            return await self.gate.enter()
        self._in_outage = True
        with self.attempt.count_waiting():
            version = await self.gate.enter()
        self._in_outage = False
        return version

    async def _call_server(self) -> None:
        async with self.upstream.post(self.request.operation, self._body) as response:
            if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise ServerFailed(
                    f"{response.status}: {_error_message(_parse_body(await response.read()))}"
                )
            if response.status != HTTPStatus.OK:
                await self._forward_error(response)
            elif self.request.stream:
                await self._send_stream(response)
            else:
                await self._send_complete(response)

    async def _send_complete(self, response: aiohttp.ClientResponse) -> None:
        payload, forwarded = parse_and_replace(
            (await response.read()).decode(), self.request.replacements
        )
        self._recorded_answer.add_payload(payload)
        self._end_answered()
        await self._begin(send_json(self._send, 200, forwarded.encode()))

    async def _send_stream(self, response: aiohttp.ClientResponse) -> None:
        await self._begin(self._send(STREAM_START))
        pending: list[bytes] = []
        async for event in read_events(response):  # to its end, so that the connection is reusable
            if event == DONE:
                await self._finish(pending)
                continue
            payload, forwarded = parse_and_replace(event.decode(), self.request.replacements)
            if "error" in payload:
                raise ServerFailed(_error_message(payload))
            self._recorded_answer.add_payload(payload)
            if self.request.is_token_only_chunk(payload):
                continue
            pending.append(_encode_event(forwarded.encode()))
            if self._recorded_answer.finished < self.request.choices:
                await self._send_body(pending.pop(), more=True)
        if not self.span.ended:
            await self._finish(pending)

    async def _finish(self, pending: list[bytes]) -> None:
        if self._recorded_answer.finished < self.request.choices:
            raise ConnectionError("the stream ended before the response was complete")
        self._end_answered()
        await self._send_body(b"".join(pending) + _encode_event(DONE), more=False)

    async def _forward_error(self, response: aiohttp.ClientResponse) -> None:
        body = _name_setting(await response.read())
        kind, sentence = str(response.status), _error_message(_parse_body(body))
        self.recording.require_span(lambda: self.span.end_with_error(kind, sentence))
        self.attempt.spans += 1
        self.attempt.unanswered.discard(self._digest)
        await self._begin(send_json(self._send, response.status, body))

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
        return self._gate_shut_meanwhile or not await self.upstream.is_healthy()

    @property
    def _gate_shut_meanwhile(self) -> bool:
        return not self.gate.is_open or self.gate.shut_count != self._shut_count

    async def _refuse(self, refused: Refused) -> None:
        if not self._started:
            await self._begin(refused.send(self._send))
        elif self.request.stream:
            await self._send_body(_encode_event(refused.body), more=False)

    async def _begin(self, sending: Awaitable[None]) -> None:
        self._started = True
        await sending

    async def _send_body(self, body: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    @property
    def _digest(self) -> bytes:
        """Identifies a request within its attempt; a repeated request has the same digest."""
        return sha256(self._body).digest()

    def _end_answered(self) -> None:
        """End the span before the last byte of the response is sent.

        Raises:
            Refused: when the span cannot be written.
        """
        self.recording.require_span(lambda: self.span.end_with_response(self._recorded_answer))
        self.attempt.spans += 1
        self.attempt.llm_calls += 1
        self.attempt.unanswered.discard(self._digest)

    def _end_cancelled(self) -> None:
        """End the span of a cancelled call."""
        if self._in_outage or self.attempt.cancelled_in_outage:
            self.attempt.unanswered.add(self._digest)
        self._end(
            lambda: self.span.end_with_error(
                "cancelled", self._cancel_reason(), self._recorded_answer
            )
        )

    def _end_failed(self, kind: str, sentence: str) -> None:
        if not self.span.ended:
            self._end(lambda: self.span.end_with_error(kind, sentence))

    def _end(self, end_span: Callable[[], None]) -> None:
        if self.recording.end_span(end_span):
            self.attempt.spans += 1

    def _cancel_reason(self) -> str:
        return "the attempt was closed" if self.attempt.closed else "the client went away"


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _encode_event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def _parse_body(body: bytes) -> dict[str, Any]:
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError:
        content = None
    return content if isinstance(content, dict) else {"error": body[:500].decode(errors="replace")}


def _name_setting(body: bytes) -> bytes:
    """Add to the error of a too long request which setting has the limit."""
    error = _parse_body(body).get("error")
    if not isinstance(error, dict) or not TOO_LONG.search(str(error.get("message"))):
        return body
    return orjson.dumps({"error": error | {"message": f"{error['message']} {LENGTH_SETTING}"}})


def _error_message(payload: dict[str, Any]) -> str:
    error = payload.get("error") or payload
    return str(error.get("message") if isinstance(error, dict) else error)
