"""Records policy calls through httpx, or through httpx2, which OpenAI's client uses.

Calls are recorded between a client's event hooks and its transport: hooks and callers see their own
request and its response, and a span of the transport is a child of the call's span.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from types import ModuleType
from typing import Any

import wrapt

from ltrain_instrument.tokens.calls import CallRecorder
from ltrain_instrument.tokens.recording import ENCODING_HEADERS, UNSUPPORTED_STATUSES, Recording


def patch_httpx(recorder: CallRecorder, module: ModuleType) -> None:
    """Wrap the clients of `module`, which is httpx or httpx2."""
    httpx = _Httpx(recorder, module)
    wrapt.wrap_function_wrapper(module, "Client._send_single_request", httpx.send)
    wrapt.wrap_function_wrapper(module, "AsyncClient._send_single_request", httpx.asend)


class _Httpx:
    def __init__(self, recorder: CallRecorder, module: Any) -> None:
        self._recorder, self._module = recorder, module
        # httpx distinguishes sync and async streams by these classes
        self._pieces = type("Pieces", (_Pieces, module.SyncByteStream), {})
        self._async_pieces = type("AsyncPieces", (_AsyncPieces, module.AsyncByteStream), {})

    def send(self, call: Callable[..., Any], client: Any, args: Any, kwargs: Any) -> Any:
        request = args[0] if args else kwargs["request"]
        recording = self._start_recording(request)
        if recording is None:
            return call(request)
        with recording.sending():
            response = call(self._with_recorded_body(request, recording))
            if response.status_code in UNSUPPORTED_STATUSES:
                status = response.status_code
                response.close()
                response = call(request)
                self._check_support(request, status, response)
        return self._record_response(recording, request, response, self._pieces)

    async def asend(self, call: Callable[..., Any], client: Any, args: Any, kwargs: Any) -> Any:
        request = args[0] if args else kwargs["request"]
        recording = self._start_recording(request)
        if recording is None:
            return await call(request)
        with recording.sending():
            response = await call(self._with_recorded_body(request, recording))
            if response.status_code in UNSUPPORTED_STATUSES:
                status = response.status_code
                await response.aclose()
                response = await call(request)
                self._check_support(request, status, response)
        return self._record_response(recording, request, response, self._async_pieces)

    def _start_recording(self, request: Any) -> Recording | None:
        return self._recorder.start_recording(
            request.method, str(request.url), lambda: self._body(request)
        )

    def _body(self, request: Any) -> bytes | None:
        try:
            body: bytes = request.content
        except self._module.RequestNotRead:  # a generator can be read only once
            return None
        return body

    def _with_recorded_body(self, request: Any, recording: Recording) -> Any:
        headers = request.headers.copy()
        headers["content-length"] = str(len(recording.body))
        return self._module.Request(
            request.method,
            request.url,
            headers=headers,
            content=recording.body,
            extensions=request.extensions,
        )

    def _check_support(self, request: Any, status: int, response: Any) -> None:
        if response.status_code not in UNSUPPORTED_STATUSES:
            self._recorder.mark_unsupported(str(request.url), status)

    def _record_response(
        self, recording: Recording, request: Any, response: Any, pieces: Any
    ) -> Any:
        response.request = request
        if recording.start_reading(response.status_code, response.headers.get("content-type", "")):
            # This decodes as the client would; the client then gets the decoded bytes
            decoded = self._module.Response(
                response.status_code,
                headers=response.headers,
                stream=response.stream,
                request=request,
            )
            for name in ENCODING_HEADERS:
                response.headers.pop(name, None)
            response.stream = pieces(recording, decoded)
        return response


class _Stream:
    def __init__(self, recording: Recording, decoded: Any) -> None:
        self._recording, self._decoded = recording, decoded

    @property
    def elapsed(self) -> Any:
        """The attribute that httpx2 reads from the stream of a response."""
        return getattr(self._decoded.stream, "elapsed", None)


class _Pieces(_Stream):
    def __iter__(self) -> Iterator[bytes]:
        return self._recording.pass_through(self._decoded.iter_bytes())

    def close(self) -> None:
        self._recording.abandon()
        self._decoded.close()


class _AsyncPieces(_Stream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._decoded.aiter_bytes():
                if visible := self._recording.feed(piece):
                    yield visible
            if rest := self._recording.finish():
                yield rest
        except BaseException as error:
            self._recording.fail_with(error)
            raise

    async def aclose(self) -> None:
        self._recording.abandon()
        await self._decoded.aclose()
