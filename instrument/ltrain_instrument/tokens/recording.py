"""Records one policy call as it passes through the agent's HTTP client.

* The client gets what it would get without ltrain: the same bytes of a body, the same events of a
  stream, the same errors. Fields that only ltrain requested are null.
* A defect of ltrain costs the record of a call, never the call.
* The span ends before the last byte is passed on.
"""

import json
import logging
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Protocol

from opentelemetry import context, trace

from ltrain_instrument.identity import use_context
from ltrain_instrument.tokens.events import DONE, Event, EventSplitter
from ltrain_instrument.tokens.fields import parse_and_replace
from ltrain_instrument.tokens.request import Request
from ltrain_instrument.tokens.response import ModelResponse
from ltrain_instrument.tokens.span import CallSpan

UNSUPPORTED_STATUSES = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
"""Statuses with which a server rejects the fields that request token ids."""

ENCODING_HEADERS = ("content-encoding", "content-length")
"""Headers of a response that do not hold for the decoded body which the client gets."""

_RECORDING = context.create_key("ltrain-recording")
_CLIENT_GONE = (GeneratorExit, CancelledError, KeyboardInterrupt)

_logger = logging.getLogger("ltrain.tokens")


def is_recording_active() -> bool:
    """Return whether an outer client already records the current call."""
    return context.get_value(_RECORDING) is not None


class _Reader(Protocol):
    def feed(self, piece: bytes) -> bytes: ...

    def finish(self) -> bytes: ...


class Recording:
    """A request, its response piece by piece, and the span of both.

    A client sends `body` within `sending`, then calls `start_reading`. If that returns True, it
    passes the response through `feed` and `finish`. Every call ends with `finish`, `fail_with` or
    `abandon`; only the first of them has an effect.
    """

    def __init__(self, request: Request, span: CallSpan) -> None:
        self.request, self._span = request, span
        self.body = json.dumps(request.body).encode()
        """The body that is sent to the server."""
        self._response = ModelResponse()
        self._reader: _Reader | None = None

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Make the span current; an exception ends it."""
        inside = trace.set_span_in_context(self._span.span)
        with use_context(context.set_value(_RECORDING, True, inside)):
            try:
                yield
            except BaseException as error:
                self.fail_with(error)
                raise

    def start_reading(self, status: int, content_type: str) -> bool:
        """Return whether the response is recorded, by its status and content type."""
        content_type = content_type.partition(";")[0].strip().lower()
        if content_type == "application/json":
            self._reader = _JsonReader(self, status)
        elif content_type == "text/event-stream" and status == HTTPStatus.OK:
            self._reader = _StreamReader(self)
        else:
            what = content_type or "no content"
            self._span.end_with_error(
                str(status), f"The server answered with status {status} and {what}."
            )
        return self._reader is not None

    def feed(self, piece: bytes) -> bytes:
        """Add a piece of the response, and return the bytes that the client gets now."""
        return piece if self._reader is None else self._reader.feed(piece)

    def finish(self) -> bytes:
        """Add the end of the response, and return the remaining bytes for the client."""
        remainder = b"" if self._reader is None else self._reader.finish()
        self.end()
        return remainder

    def pass_through(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Record a complete response, and yield its bytes for the client."""
        try:
            for piece in pieces:
                if visible := self.feed(piece):
                    yield visible
            if remainder := self.finish():
                yield remainder
        except BaseException as error:
            self.fail_with(error)
            raise

    def fail_with(self, error: BaseException) -> None:
        """End the span with the response up to an exception."""
        if isinstance(error, _CLIENT_GONE):
            self.abandon()
        else:
            self.fail(type(error).__name__, str(error))

    def abandon(self) -> None:
        """End the span when the client stops reading: as failed, unless it is complete."""
        if self._is_complete:
            self.end()
        else:
            self.fail("cancelled", "the client went away")

    def truncate(self) -> None:
        """End the span when the process exits before the response is complete."""
        if not self._span.ended:
            self._span.mark_truncated()
            self.abandon()

    def end(self) -> None:
        """End the span with the response, or with an error if it is incomplete."""
        if self._is_complete:
            self._end_once(lambda: self._span.end_with_response(self._response))
        else:
            reason = "The stream ended before the answer." if self.request.stream else "No answer."
            self.fail("incomplete", reason)

    def fail(self, error_type: str, sentence: str) -> None:
        """End the span with an error."""
        self._end_once(lambda: self._span.end_with_error(error_type, sentence, self._response))

    def _end_once(self, end: Callable[[], None]) -> None:
        try:
            if not self._span.ended:
                end()
        except Exception as error:  # a server's values may have any type
            self._unreadable(error)

    def _unreadable(self, error: Exception) -> None:
        _logger.warning("ltrain: an answer of %s is unreadable: %r", self.request.model, error)
        self._span.end_with_error("unreadable", f"{type(error).__name__}: {error}")

    def process_json(self, raw: bytes) -> bytes | None:
        """Add a JSON text to the response, and return the text that the client gets.

        Return None if the server would not have sent it without ltrain.
        """
        try:
            payload, visible = parse_and_replace(raw.decode(), self.request.replacements)
            self._response.add_payload(payload)
            if payload.get("error"):
                self.fail(*_error(payload))
            return None if self.request.is_token_only_chunk(payload) else visible.encode()
        # The client must get every response, also an invalid one, and handle it itself
        except Exception as error:
            self._unreadable(error)
            return raw

    @property
    def _is_complete(self) -> bool:
        choices = self._response.finished if self.request.stream else len(self._response.choices)
        return choices >= self.request.choices


class _JsonReader:
    """Buffers a JSON body until it is complete."""

    def __init__(self, recording: Recording, status: int) -> None:
        self._recording, self._status = recording, status
        self._body = bytearray()

    def feed(self, piece: bytes) -> bytes:
        self._body += piece
        return b""

    def finish(self) -> bytes:
        body, self._body = bytes(self._body), bytearray()
        if self._status < HTTPStatus.BAD_REQUEST:
            return self._recording.process_json(body) or b""
        self._recording.fail(str(self._status), _error(_loads(body))[1])
        return body


class _StreamReader:
    """Passes on each server-sent event as soon as it is complete."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._events = EventSplitter()

    def feed(self, piece: bytes) -> bytes:
        return b"".join([self._visible(event) for event in self._events.feed(piece)])

    def finish(self) -> bytes:
        return self._events.remainder

    def _visible(self, event: Event) -> bytes:
        if event.data == DONE:
            self._recording.end()
        if event.data in (DONE, b""):
            return event.raw
        visible = self._recording.process_json(event.data)
        return b"" if visible is None else event.with_data(visible)


def _loads(body: bytes) -> dict[str, Any]:
    try:
        payload = json.loads(body)
    except ValueError:
        payload = None
    return payload if isinstance(payload, dict) else {"error": body[:500].decode(errors="replace")}


def _error(payload: dict[str, Any]) -> tuple[str, str]:
    error = payload.get("error") or payload
    if not isinstance(error, dict):
        return "error", str(error)
    return str(error.get("code") or error.get("type") or "error"), str(error.get("message"))
