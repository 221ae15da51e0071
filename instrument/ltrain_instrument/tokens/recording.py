"""One call of a policy, recorded on its way through the agent's HTTP client.

* What the client gets is what it would get without us: the same bytes of a body, the same events of
  a stream, the same errors. What was asked for on top is null in it.
* A defect of ours costs the record of a call, never the call.
* The span ends before the last byte is handed on.
"""

import json
import logging
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Protocol

from opentelemetry import context, trace

from ltrain_instrument.tokens.answer import Answer
from ltrain_instrument.tokens.events import DONE, Event, Events
from ltrain_instrument.tokens.fields import read
from ltrain_instrument.tokens.request import Request
from ltrain_instrument.tokens.span import CallSpan

UNWILLING = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
"""How a server may answer that it does not know the fields which ask for token ids."""

_RECORDING = context.create_key("ltrain-recording")
_GONE = (GeneratorExit, CancelledError, KeyboardInterrupt)

_logger = logging.getLogger("ltrain.tokens")


def is_recorded() -> bool:
    """Tell whether a client further out records the current call already."""
    return context.get_value(_RECORDING) is not None


class _Reader(Protocol):
    def feed(self, piece: bytes) -> bytes: ...

    def finish(self) -> bytes: ...


class Recording:
    """A request, its answer piece by piece, and the span of both.

    A client asks for `body`, within `sending`; with `reads` it learns whether the answer is to be
    passed through `feed` and `finish`. However that ends, one of `finish`, `broke` and `abandon` is
    called; of several the first counts.
    """

    def __init__(self, request: Request, span: CallSpan) -> None:
        self.request, self._span = request, span
        self.body = json.dumps(request.body).encode()
        """What the server is asked."""
        self._answer = Answer()
        self._reader: _Reader | None = None

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Make the span current; a failure to send ends it."""
        inside = trace.set_span_in_context(self._span.span)
        token = context.attach(context.set_value(_RECORDING, True, inside))
        try:
            yield
        except BaseException as error:
            self.broke(error)
            raise
        finally:
            context.detach(token)

    def reads(self, status: int, kind: str) -> bool:
        """Say whether the answer is to be read here, by its status and content type."""
        kind = kind.partition(";")[0].strip().lower()
        if kind == "application/json":
            self._reader = _Whole(self, status)
        elif kind == "text/event-stream" and status == HTTPStatus.OK:
            self._reader = _Stream(self)
        else:
            what = kind or "nothing"
            self._span.failed(str(status), f"The server answered with status {status} and {what}.")
        return self._reader is not None

    def feed(self, piece: bytes) -> bytes:
        """Take a piece of the answer, and give what the client sees of it by now."""
        return piece if self._reader is None else self._reader.feed(piece)

    def finish(self) -> bytes:
        """Take the answer's end, and give what the client has not seen."""
        rest = b"" if self._reader is None else self._reader.finish()
        self.end()
        return rest

    def through(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Pass a whole answer through, however its reading ends."""
        try:
            for piece in pieces:
                if shown := self.feed(piece):
                    yield shown
            if rest := self.finish():
                yield rest
        except BaseException as error:
            self.broke(error)
            raise

    def broke(self, error: BaseException) -> None:
        """End the span with what there was when the answer broke off."""
        if isinstance(error, _GONE):
            self.abandon()
        else:
            self.fail(type(error).__name__, str(error))

    def abandon(self) -> None:
        """End the span where the client does not want the rest: failed, unless that was all."""
        if self._complete:
            self.end()
        else:
            self.fail("cancelled", "the client went away")

    def leave(self) -> None:
        """End the span where the process ends before the answer, with the tokens there are."""
        if not self._span.ended:
            self._span.truncated()
            self.abandon()

    def end(self) -> None:
        """End the span with the answer, or with an error where that is not all."""
        if self._complete:
            self._close(lambda: self._span.answered(self._answer))
        else:
            why = "The stream ended before the answer." if self.request.stream else "No answer."
            self.fail("incomplete", why)

    def fail(self, kind: str, sentence: str) -> None:
        """End the span with an error."""
        self._close(lambda: self._span.failed(kind, sentence, self._answer))

    def _close(self, close: Callable[[], None]) -> None:
        try:
            if not self._span.ended:
                close()
        except Exception as error:  # what a server says may be of any type
            self._unreadable(error)

    def _unreadable(self, error: Exception) -> None:
        _logger.warning("ltrain: an answer of %s is unreadable: %r", self.request.model, error)
        self._span.failed("unreadable", f"{type(error).__name__}: {error}")

    def take(self, raw: bytes) -> bytes | None:
        """Keep what the span needs of a JSON text, and give what the client sees of it.

        None where, without us, it would not have been sent.
        """
        try:
            payload, shown = read(raw.decode(), self.request.instead)
            self._answer.take(payload)
            if payload.get("error"):
                self.fail(*_error(payload))
            return None if self.request.hides(payload) else shown.encode()
        # Whatever a server says: the client must get it, and learn for itself what is wrong
        except Exception as error:
            self._unreadable(error)
            return raw

    @property
    def _complete(self) -> bool:
        choices = self._answer.finished if self.request.stream else len(self._answer.choices)
        return choices >= self.request.choices


class _Whole:
    """A JSON body: held back until it is whole."""

    def __init__(self, recording: Recording, status: int) -> None:
        self._recording, self._status = recording, status
        self._body = bytearray()

    def feed(self, piece: bytes) -> bytes:
        self._body += piece
        return b""

    def finish(self) -> bytes:
        body, self._body = bytes(self._body), bytearray()
        if self._status < HTTPStatus.BAD_REQUEST:
            return self._recording.take(body) or b""
        self._recording.fail(str(self._status), _error(_loads(body))[1])
        return body


class _Stream:
    """Server-sent events: each is handed on as soon as it is whole."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._events = Events()

    def feed(self, piece: bytes) -> bytes:
        return b"".join([self._shown(event) for event in self._events.feed(piece)])

    def finish(self) -> bytes:
        return self._events.rest

    def _shown(self, event: Event) -> bytes:
        if event.data == DONE:
            self._recording.end()
        if event.data in (DONE, b""):
            return event.whole
        shown = self._recording.take(event.data)
        return b"" if shown is None else event.carrying(shown)


def _loads(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"error": body[:500].decode(errors="replace")}


def _error(payload: dict[str, Any]) -> tuple[str, str]:
    error = payload.get("error") or payload
    if not isinstance(error, dict):
        return "error", str(error)
    return str(error.get("code") or error.get("type") or "error"), str(error.get("message"))
