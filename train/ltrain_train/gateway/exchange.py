"""One call: it forwards the agent's request to a server, and the response to the agent.

* The span is on disk before the last byte of the response is sent: before the body, or in a stream
  before the chunk that ends it.
* If the span cannot be written, the call ends with status 503, or a stream with an error event.
* If the agent disconnects, the generation is aborted and the span records that.
"""

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from errno import ENOSPC, EROFS
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

import aiohttp
from opentelemetry.trace import Span
from starlette.types import Message, Receive, Send

from ltrain_collector.access import AttemptKey
from ltrain_instrument import attributes
from ltrain_instrument.disk import read_disk
from ltrain_instrument.settings import HOME
from ltrain_instrument.tokens import (
    DONE,
    CallSpan,
    ModelResponse,
    Operation,
    Request,
)
from ltrain_train.gateway.apis import Answer, ClientCall, error_message, error_sentence
from ltrain_train.gateway.attempts import AttemptCalls
from ltrain_train.gateway.conversations import Placement, Unit
from ltrain_train.gateway.errors import Refused, send_json
from ltrain_train.gateway.request_pool import RequestPool
from ltrain_train.gateway.serving.upstream import read_answer, read_error, read_events

INLINE_ANSWER_BYTES = 1 << 20
"""Bytes of an answer that the event loop reads itself: about five milliseconds."""
MIN_FREE = 16 << 20
"""Bytes with which a disk that was full can be written to again."""
RECORDER = {attributes.RECORDER: attributes.SCOPE_GATEWAY}
"""The attribute of the gateway's spans of calls."""
PATIENCE = 5.0
"""Seconds after which a client may leave a call because the server is slow; one that leaves sooner
did not wait for an answer."""
STREAM_START: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8")],
}


class Server(Protocol):
    """A server of OpenAI's API."""

    def post(
        self, operation: Operation, body: bytes
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Post a call; leaving the context before its end aborts the generation."""


class ModelServer(Protocol):
    """A model that agents call: a policy, the model of a route, or a server that is recorded."""

    def request(self, call: ClientCall, claims: AttemptKey | None) -> Request:
        """Return the request that the server gets; `claims` is None for a call of production."""
        ...

    def describe(self, span: Span) -> None:
        """Set on a call's span which model answers, and what the server does not report."""
        ...

    def exchange(self, call: "Call") -> "Exchange":
        """Return the exchange that runs a call."""
        ...


class ServerFailed(ConnectionError):
    """The policy server answered with a status of 500 or above, or broke off its response."""


class Recording:
    """Ends spans and remembers whether the last one was written to the spool."""

    def __init__(self) -> None:
        self._error: OSError | None = None
        """Why the last span could not be written; None if it was."""

    @property
    def fault(self) -> str:
        """Why a span cannot be written, as far as is known; empty if one can."""
        error = self._error
        if error is None or (error.errno in (ENOSPC, EROFS) and _is_writable(HOME.read())):
            return ""
        return str(error)

    def end_span(self, end_span: Callable[[], None]) -> bool:
        """End a span and return whether it was written."""
        try:
            end_span()
        except OSError as error:
            self._error = error
            return False
        self._error = None
        return True

    def require_span(self, end_span: Callable[[], None]) -> None:
        """End a span that must be written."""
        if not self.end_span(end_span):
            raise Refused(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"The gateway cannot record the call, so it sends no response: {self._error}. Free "
                "space on the disk or make it writable, or start the collector so that the spool "
                "empties.",
            )


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an agent."""

    request: Request
    """The request that the server gets."""
    body: bytes
    """Its JSON."""
    claims: AttemptKey | None
    """The key of the call; None for a call of production."""
    span: CallSpan
    attempt: AttemptCalls
    send: Send
    answer: Answer
    """Converts the response for the agent."""
    recording: Recording
    requests: RequestPool
    """Reads large answers beside the event loop."""
    unit: Callable[[], Unit]
    """Returns the unit that an experiment assigns as a whole."""
    placement: Placement | None = None
    """Its conversation; None for a call with a trace."""


class Exchange:
    """Runs one call until its span has ended."""

    def __init__(self, call: Call, upstream: Server) -> None:
        self.request, self.span, self.attempt = call.request, call.span, call.attempt
        self.upstream, self.recording, self._answer = upstream, call.recording, call.answer
        self._requested = self._body = call.body
        self._send, self._requests = call.send, call.requests
        self._placement = call.placement
        self._recorded_answer = ModelResponse()
        self._started = False
        """Whether the response's status has been sent to the agent."""
        self._content_sent = False
        """Whether a part of the answer has been sent to the agent."""
        self._answered_before = call.attempt.llm_calls
        """Number of the attempt's answered calls when this call began."""

    async def run(self, receive: Receive) -> None:
        """Run the call until it ends or the agent disconnects."""
        if self._placement is not None:
            self.attempt.spans += self._placement.tool_spans
        with self.attempt.count_call():
            await self._run(receive)

    async def _run(self, receive: Receive) -> None:
        call = asyncio.ensure_future(self._run_call())
        disconnect = asyncio.ensure_future(_wait_for_disconnect(receive))
        began = time.monotonic()
        self.attempt.in_flight_calls.add(call)
        try:
            await asyncio.wait((call, disconnect), return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                self.attempt.requests.faults += 1
                waited = time.monotonic() - began
                answered = self._content_sent or self.attempt.llm_calls > self._answered_before
                if waited >= PATIENCE and not answered:
                    self.attempt.given_up += 1
        finally:
            if not self.span.ended:
                call.cancel()
            disconnect.cancel()
            await asyncio.wait((call,))
            if self._placement is not None:
                self._placement.leave()
            self.attempt.in_flight_calls.discard(call)
            if call.cancelled() and self.attempt.closed:
                await self._refuse(Refused(HTTPStatus.FORBIDDEN, "The attempt has been closed."))
        if not call.cancelled():
            call.result()  # raises an unexpected error, so that the log shows it

    async def _run_call(self) -> None:
        try:
            await self._call()
        except Refused as refused:  # the span could not be written
            self.attempt.unanswered.add(self._digest)
            await self._refuse(refused)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            await self._refuse_failed(f"{type(error).__name__}: {error}")
        finally:
            if not self.span.ended:
                self._end_cancelled()

    async def _call(self) -> None:
        await self._call_server()

    async def _call_server(self) -> None:
        async with self.upstream.post(self.request.operation, self._body) as response:
            if response.status != HTTPStatus.OK:
                await self._handle_error(response)
            elif self.request.stream:
                await self._send_stream(response)
            else:
                await self._send_complete(response)

    async def _handle_error(self, response: aiohttp.ClientResponse) -> None:
        await self._forward_error(response.status, await read_error(response))

    async def _send_complete(self, response: aiohttp.ClientResponse) -> None:
        body = await read_answer(response)
        if len(body) > INLINE_ANSWER_BYTES:
            read = partial(self._read_answer, body)
            answered = await self._requests.run(self.attempt.requests, read)
        else:
            answered = self._read_answer(body)
        self._recorded_answer, forwarded = answered
        await self._confirm_version()
        self._end_answered()
        await self._begin(send_json(self._send, 200, forwarded))

    def _read_answer(self, body: bytes) -> tuple[ModelResponse, bytes]:
        """Return what is recorded of an answer, and the bytes for the agent."""
        with _reading():
            payload, forwarded = self._answer.complete(body)
            self._check_answer(payload)
            answer = ModelResponse()
            answer.add_payload(payload)
        return answer, forwarded

    async def _send_stream(self, response: aiohttp.ClientResponse) -> None:
        await self._begin(self._send(STREAM_START))
        pending: list[bytes] = []
        async for event in read_events(response):  # to its end, so that the connection is reusable
            if event == DONE:
                await self._finish(pending)
                continue
            with _reading():
                payload, events = self._answer.chunk(event)
                if "error" in payload:
                    raise ServerFailed(error_sentence(payload))
                self._check_answer(payload)
                self._recorded_answer.add_payload(payload)
            if self._recorded_answer.finished >= self.request.choices:
                pending.append(events)
            elif events:
                await self._send_body(events, more=True)
        if not self.span.ended:
            await self._finish(pending)

    async def _confirm_version(self) -> None:
        """Check that the version of the call answered it, before its span ends."""

    def _check_answer(self, payload: dict[str, Any]) -> None:
        """Check that the right model answers, where the server names it."""

    async def _finish(self, pending: list[bytes]) -> None:
        if self._recorded_answer.finished < self.request.choices:
            raise ConnectionError("the stream ended before the response was complete")
        await self._confirm_version()
        self._end_answered()
        await self._send_body(b"".join(pending) + self._answer.end(), more=False)

    async def _forward_error(self, status: int, body: bytes) -> None:
        kind, sentence = str(status), error_message(body)
        self.recording.require_span(lambda: self.span.end_with_error(kind, sentence))
        self.attempt.spans += 1
        self._note_answer()
        await self._begin(send_json(self._send, status, self._answer.error_body(status, body)))

    async def _refuse_failed(self, reason: str) -> None:
        """Refuse a call that the server did not answer."""
        sentence = (
            f"The server of model '{self.request.model}' failed: {reason}. Send the request again, "
            "or check the model's route."
        )
        self._end_failed("upstream", sentence)
        await self._refuse(Refused(HTTPStatus.BAD_GATEWAY, sentence))

    async def _refuse(self, refused: Refused) -> None:
        if not self._started:
            body = self._answer.error_body(refused.status, refused.body)
            await self._begin(send_json(self._send, refused.status, body))
        elif self.request.stream:
            await self._send_body(self._answer.error(refused.status, refused.body), more=False)

    async def _begin(self, sending: Awaitable[None]) -> None:
        self._started = True
        with self.attempt.count_sending():
            await sending

    async def _send_body(self, body: bytes, *, more: bool) -> None:
        self._content_sent = True
        with self.attempt.count_sending():
            await self._send({"type": "http.response.body", "body": body, "more_body": more})

    @property
    def _digest(self) -> bytes:
        """Identifies a request within its attempt; a repeated request has the same digest."""
        return sha256(self._requested).digest()

    def _end_answered(self) -> None:
        """End the span before the last byte of the response is sent."""
        with _reading():
            self.recording.require_span(lambda: self.span.end_with_response(self._recorded_answer))
        if self._placement is not None:
            choices = self._recorded_answer.ordered_choices
            self._placement.answer([choice.message for choice in choices])
        self.attempt.spans += 1
        self.attempt.llm_calls += 1
        self.attempt.given_up = self.attempt.requests.faults = 0
        self.attempt.tokens += self._recorded_answer.sampled
        self._note_answer()

    def _note_answer(self) -> None:
        """Take note that this request is answered, which an outage may have left unanswered."""
        if self.attempt.unanswered:
            self.attempt.unanswered.discard(self._digest)

    def _end_cancelled(self) -> None:
        """End the span of a cancelled call."""
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


def _is_writable(folder: Path) -> bool:
    disk = read_disk(folder)
    return disk.free > MIN_FREE and not disk.read_only


@contextmanager
def _reading() -> Iterator[None]:
    """Read JSON of a server."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, OverflowError, struct.error) as error:
        raise ValueError(f"the response has an unexpected form ({error})") from error


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
