"""Records policy calls that go through requests, at its HTTP adapter, below sessions and hooks."""

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import wrapt

from ltrain_instrument.tokens.calls import Calls
from ltrain_instrument.tokens.recording import UNWILLING, Recording


def install(calls: Calls, module: ModuleType) -> None:
    """Wrap the HTTP adapter of `module`, which is requests.

    Raises:
        AttributeError: when it is built in another way than the versions known.
    """
    wrapt.wrap_function_wrapper(module, "adapters.HTTPAdapter.send", _Requests(calls).send)


class _Requests:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def send(self, call: Callable[..., Any], adapter: Any, given: Any, named: Any) -> Any:
        request, *more = given or (named.pop("request"),)
        recording = self._calls.begin(request.method, request.url, lambda: _body(request))
        if recording is None:
            return call(request, *more, **named)
        with recording.sending():
            response = call(_asking(request, recording), *more, **named)
            if response.status_code in UNWILLING:
                status = response.status_code
                response.close()
                response = call(request, *more, **named)
                if response.status_code not in UNWILLING:
                    self._calls.refuses(request.url, status)
        response.request = request
        if recording.reads(response.status_code, response.headers.get("content-type", "")):
            response.raw = _Raw(recording, response.raw)
            for name in ("content-encoding", "content-length"):
                response.headers.pop(name, None)
        return response


def _body(request: Any) -> bytes | None:
    body = request.body.encode() if isinstance(request.body, str) else request.body
    return body if isinstance(body, bytes) else None  # a generator's can be read only once


def _asking(request: Any, recording: Recording) -> Any:
    asking = request.copy()
    asking.body = recording.body
    asking.headers["Content-Length"] = str(len(recording.body))
    return asking


class _Raw:
    """urllib3's response, whose body passes through a recording; it is always decoded."""

    def __init__(self, recording: Recording, raw: Any) -> None:
        self._recording, self._raw = recording, raw
        self._unread: Iterator[bytes] | None = None
        self._rest = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def stream(
        self, amt: int | None = 65536, decode_content: bool | None = None
    ) -> Iterator[bytes]:
        """Give the body in pieces of at most `amt` bytes."""
        for piece in self._pieces(amt):
            size = amt or len(piece)
            yield from (piece[at : at + size] for at in range(0, len(piece), size))

    def read(self, amt: int | None = None, decode_content: bool | None = None) -> bytes:
        """Give the next `amt` bytes, or what there is until the end."""
        self._unread = self._unread or self._pieces(amt or 65536)
        while amt is None or len(self._rest) < amt:
            piece = next(self._unread, b"")
            if not piece:
                break
            self._rest += piece
        amt = len(self._rest) if amt is None else amt
        taken, self._rest = self._rest[:amt], self._rest[amt:]
        return taken

    def _pieces(self, amt: int | None) -> Iterator[bytes]:
        return self._recording.through(self._raw.stream(amt, decode_content=True))

    def close(self) -> None:
        """Give up the rest."""
        self._recording.abandon()
        self._raw.close()
