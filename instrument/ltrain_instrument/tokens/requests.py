"""Records policy calls through requests, at its HTTP adapter, below sessions and hooks."""

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import wrapt

from ltrain_instrument.tokens.calls import CallRecorder
from ltrain_instrument.tokens.recording import ENCODING_HEADERS, UNSUPPORTED_STATUSES, Recording


def patch_requests(recorder: CallRecorder, module: ModuleType) -> None:
    """Wrap the HTTP adapter of `module`, which is requests."""
    wrapt.wrap_function_wrapper(module, "adapters.HTTPAdapter.send", _Requests(recorder).send)


class _Requests:
    def __init__(self, recorder: CallRecorder) -> None:
        self._recorder = recorder

    def send(self, call: Callable[..., Any], adapter: Any, args: Any, kwargs: Any) -> Any:
        request, *rest = args or (kwargs.pop("request"),)
        recording = self._recorder.start_recording(
            request.method, request.url, lambda: _body(request)
        )
        if recording is None:
            return call(request, *rest, **kwargs)
        with recording.sending():
            response = call(_with_recorded_body(request, recording), *rest, **kwargs)
            if response.status_code in UNSUPPORTED_STATUSES:
                status = response.status_code
                response.close()
                response = call(request, *rest, **kwargs)
                if response.status_code not in UNSUPPORTED_STATUSES:
                    self._recorder.mark_unsupported(request.url, status)
        response.request = request
        if recording.start_reading(response.status_code, response.headers.get("content-type", "")):
            response.raw = _Raw(recording, response.raw)
            for name in ENCODING_HEADERS:
                response.headers.pop(name, None)
        return response


def _body(request: Any) -> bytes | None:
    body = request.body.encode() if isinstance(request.body, str) else request.body
    return body if isinstance(body, bytes) else None  # a generator can be read only once


def _with_recorded_body(request: Any, recording: Recording) -> Any:
    copy = request.copy()
    copy.body = recording.body
    copy.headers["Content-Length"] = str(len(recording.body))
    return copy


class _Raw:
    """The response of urllib3, whose body passes through a recording; it is always decoded."""

    def __init__(self, recording: Recording, raw: Any) -> None:
        self._recording, self._raw = recording, raw
        self._remaining_pieces: Iterator[bytes] | None = None
        self._buffer = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def stream(
        self, amt: int | None = 65536, decode_content: bool | None = None
    ) -> Iterator[bytes]:
        """Yield the body in pieces of at most `amt` bytes."""
        for piece in self._pieces(amt):
            size = amt or len(piece)
            yield from (piece[at : at + size] for at in range(0, len(piece), size))

    def read(self, amt: int | None = None, decode_content: bool | None = None) -> bytes:
        """Return the next `amt` bytes, or all bytes until the end."""
        self._remaining_pieces = self._remaining_pieces or self._pieces(amt or 65536)
        while amt is None or len(self._buffer) < amt:
            piece = next(self._remaining_pieces, b"")
            if not piece:
                break
            self._buffer += piece
        amt = len(self._buffer) if amt is None else amt
        result, self._buffer = self._buffer[:amt], self._buffer[amt:]
        return result

    def _pieces(self, amt: int | None) -> Iterator[bytes]:
        return self._recording.pass_through(self._raw.stream(amt, decode_content=True))

    def close(self) -> None:
        """End the recording and close the response."""
        self._recording.abandon()
        self._raw.close()
