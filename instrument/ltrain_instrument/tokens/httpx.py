"""Records policy calls that go through httpx, or through httpx2, which OpenAI's client uses.

The place is between a client's event hooks and its transport: hooks and callers see the request
that they made and the answer to it, and a span of the transport is below the call's.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from types import ModuleType
from typing import Any

import wrapt

from ltrain_instrument.tokens.calls import Calls
from ltrain_instrument.tokens.recording import UNWILLING, Recording


def install(calls: Calls, module: ModuleType) -> None:
    """Wrap the clients of `module`, which is httpx or httpx2.

    Raises:
        AttributeError: when it is built in another way than the versions known.
    """
    httpx = _Httpx(calls, module)
    wrapt.wrap_function_wrapper(module, "Client._send_single_request", httpx.send)
    wrapt.wrap_function_wrapper(module, "AsyncClient._send_single_request", httpx.asend)


class _Httpx:
    def __init__(self, calls: Calls, module: Any) -> None:
        self._calls, self._module = calls, module
        # httpx tells sync from async streams by these classes
        self._pieces = type("Pieces", (_Pieces, module.SyncByteStream), {})
        self._async_pieces = type("AsyncPieces", (_AsyncPieces, module.AsyncByteStream), {})

    def send(self, call: Callable[..., Any], client: Any, given: Any, named: Any) -> Any:
        request = given[0] if given else named["request"]
        recording = self._begin(request)
        if recording is None:
            return call(request)
        with recording.sending():
            response = call(self._asking(request, recording))
            if response.status_code in UNWILLING:
                status = response.status_code
                response.close()
                response = call(request)
                self._compare(request, status, response)
        return self._read(recording, request, response, self._pieces)

    async def asend(self, call: Callable[..., Any], client: Any, given: Any, named: Any) -> Any:
        request = given[0] if given else named["request"]
        recording = self._begin(request)
        if recording is None:
            return await call(request)
        with recording.sending():
            response = await call(self._asking(request, recording))
            if response.status_code in UNWILLING:
                status = response.status_code
                await response.aclose()
                response = await call(request)
                self._compare(request, status, response)
        return self._read(recording, request, response, self._async_pieces)

    def _begin(self, request: Any) -> Recording | None:
        return self._calls.begin(request.method, str(request.url), lambda: self._body(request))

    def _body(self, request: Any) -> bytes | None:
        try:
            body: bytes = request.content
        except self._module.RequestNotRead:  # a generator's: it can be read only once
            return None
        return body

    def _asking(self, request: Any, recording: Recording) -> Any:
        headers = request.headers.copy()
        headers["content-length"] = str(len(recording.body))
        return self._module.Request(
            request.method,
            request.url,
            headers=headers,
            content=recording.body,
            extensions=request.extensions,
        )

    def _compare(self, request: Any, status: int, response: Any) -> None:
        if response.status_code not in UNWILLING:
            self._calls.refuses(str(request.url), status)

    def _read(self, recording: Recording, request: Any, response: Any, pieces: Any) -> Any:
        response.request = request
        if recording.reads(response.status_code, response.headers.get("content-type", "")):
            # Decodes as the client would, which then gets what is decoded
            decoded = self._module.Response(
                response.status_code,
                headers=response.headers,
                stream=response.stream,
                request=request,
            )
            for name in ("content-encoding", "content-length"):
                response.headers.pop(name, None)
            response.stream = pieces(recording, decoded)
        return response


class _Stream:
    def __init__(self, recording: Recording, decoded: Any) -> None:
        self._recording, self._decoded = recording, decoded

    @property
    def elapsed(self) -> Any:
        """What httpx2 reads off a response's stream."""
        return getattr(self._decoded.stream, "elapsed", None)


class _Pieces(_Stream):
    def __iter__(self) -> Iterator[bytes]:
        return self._recording.through(self._decoded.iter_bytes())

    def close(self) -> None:
        self._recording.abandon()
        self._decoded.close()


class _AsyncPieces(_Stream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._decoded.aiter_bytes():
                if shown := self._recording.feed(piece):
                    yield shown
            if rest := self._recording.finish():
                yield rest
        except BaseException as error:
            self._recording.broke(error)
            raise

    async def aclose(self) -> None:
        self._recording.abandon()
        await self._decoded.aclose()
