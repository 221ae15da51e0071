"""Records policy calls through aiohttp, at the session's requests."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import wrapt

from ltrain_instrument.tokens.calls import CallRecorder
from ltrain_instrument.tokens.recording import UNSUPPORTED_STATUSES, Recording


def patch_aiohttp(recorder: CallRecorder, module: ModuleType) -> None:
    """Wrap the sessions of `module`, which is aiohttp."""
    wrapt.wrap_function_wrapper(
        module, "ClientSession._request", _Aiohttp(recorder, module).request
    )


class _Aiohttp:
    def __init__(self, recorder: CallRecorder, module: Any) -> None:
        self._recorder, self._module = recorder, module
        self._pieces = _reader_class(module)

    async def request(self, call: Callable[..., Any], session: Any, args: Any, kwargs: Any) -> Any:
        method, target, kwargs = _bind_arguments(*args, **kwargs)
        url = _url(session, target)
        recording = self._recorder.start_recording(method, url, lambda: _body(session, **kwargs))
        if recording is None:
            return await call(method, target, **kwargs)
        with recording.sending():
            status, response = await self._post(
                call, method, target, _with_recorded_body(session, recording, **kwargs)
            )
            if status in UNSUPPORTED_STATUSES:
                if response is not None:
                    response.release()
                response = await call(method, target, **kwargs)
                if response.status not in UNSUPPORTED_STATUSES:
                    self._recorder.mark_unsupported(url, status)
        if recording.start_reading(response.status, response.headers.get("content-type", "")):
            chunked = response.headers.get("transfer-encoding", "").lower() == "chunked"
            response.content = self._pieces(recording, response.content, chunked=chunked)
        return response

    async def _post(
        self, call: Callable[..., Any], method: str, target: Any, kwargs: dict[str, Any]
    ) -> tuple[int, Any]:
        """Return the status, and the response unless the session raises for that status."""
        try:
            response = await call(method, target, **kwargs)
        except self._module.ClientResponseError as error:
            if error.status not in UNSUPPORTED_STATUSES:
                raise
            return error.status, None
        return response.status, response


def _bind_arguments(method: str, str_or_url: Any, **kwargs: Any) -> tuple[str, Any, dict[str, Any]]:
    return method, str_or_url, kwargs


def _url(session: Any, target: Any) -> str:
    try:
        return str(session._build_url(target))
    except ValueError:  # aiohttp raises its own error
        return ""


def _body(
    session: Any, json: Any = None, data: Any = None, compress: Any = None, **_: Any
) -> bytes | None:
    """Return the body; None for a form, a file or a generator, and if it will be compressed."""
    body = data if json is None else session.json_serialize(json)
    if isinstance(body, str):
        body = body.encode()
    return body if isinstance(body, bytes) and not compress else None


def _with_recorded_body(
    session: Any, recording: Recording, headers: Any = None, json: Any = None, **kwargs: Any
) -> dict[str, Any]:
    headers = type(session.headers)(headers or ())
    if json is not None and "Content-Type" not in session.headers:
        headers.setdefault("Content-Type", "application/json")
    if "Content-Length" in headers:
        headers["Content-Length"] = str(len(recording.body))
    return {**kwargs, "headers": headers, "data": recording.body}


def _reader_class(module: Any) -> Any:
    protocol = module.base_protocol.BaseProtocol

    class Pieces(module.StreamReader):  # type: ignore[misc]
        """The content of a response; each read passes through the recording."""

        def __init__(self, recording: Recording, source: Any, *, chunked: bool) -> None:
            loop = source._loop
            super().__init__(protocol(loop), source.get_read_buffer_limits()[0], loop=loop)
            self._recording, self._source = recording, source
            self._is_chunked, self._has_data = chunked, False
            if chunked:  # a client may then read the chunk boundaries
                self.begin_http_chunk_receiving()

        async def _wait(self, func_name: str) -> None:
            try:
                piece, ends_chunk = await self._next_piece()
                ended = not piece and not ends_chunk
                visible = self._recording.finish() if ended else self._recording.feed(piece)
            except BaseException as error:
                self._recording.fail_with(error)
                raise
            self._has_data = self._has_data or bool(visible)
            self.feed_data(visible)
            if self._is_chunked and self._has_data and (ended or ends_chunk):
                self._has_data = False
                self.end_http_chunk_receiving()
            if ended:
                self.feed_eof()

        async def _next_piece(self) -> tuple[bytes, bool]:
            """Return the next piece and whether it ends a chunk; neither at the end of the body."""
            if not self._is_chunked:
                return await self._source.readany(), False
            piece: tuple[bytes, bool] = await self._source.readchunk()
            return piece

        def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
            # aiohttp calls this when a response is released or closed
            self._recording.abandon()
            self._source.set_exception(exc, *cause)
            super().set_exception(exc, *cause)

    return Pieces
