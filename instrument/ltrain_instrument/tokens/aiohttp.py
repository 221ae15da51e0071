"""Records policy calls that go through aiohttp, at its session's requests."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import wrapt

from ltrain_instrument.tokens.calls import Calls
from ltrain_instrument.tokens.recording import UNWILLING, Recording


def install(calls: Calls, module: ModuleType) -> None:
    """Wrap the sessions of `module`, which is aiohttp.

    Raises:
        AttributeError: when it is built in another way than the versions known.
    """
    wrapt.wrap_function_wrapper(module, "ClientSession._request", _Aiohttp(calls, module).request)


class _Aiohttp:
    def __init__(self, calls: Calls, module: Any) -> None:
        self._calls, self._module = calls, module
        self._pieces = _reader_class(module)

    async def request(self, call: Callable[..., Any], session: Any, given: Any, named: Any) -> Any:
        method, target, named = _bound(*given, **named)
        url = _url(session, target)
        recording = self._calls.begin(method, url, lambda: _body(session, **named))
        if recording is None:
            return await call(method, target, **named)
        with recording.sending():
            status, response = await self._post(
                call, method, target, _asking(session, recording, **named)
            )
            if status in UNWILLING:
                if response is not None:
                    response.release()
                response = await call(method, target, **named)
                if response.status not in UNWILLING:
                    self._calls.refuses(url, status)
        if recording.reads(response.status, response.headers.get("content-type", "")):
            chunked = response.headers.get("transfer-encoding", "").lower() == "chunked"
            response.content = self._pieces(recording, response.content, chunked=chunked)
        return response

    async def _post(
        self, call: Callable[..., Any], method: str, target: Any, named: dict[str, Any]
    ) -> tuple[int, Any]:
        """Give status and response; no response where the session raises for that status."""
        try:
            response = await call(method, target, **named)
        except self._module.ClientResponseError as error:
            if error.status not in UNWILLING:
                raise
            return error.status, None
        return response.status, response


def _bound(method: str, str_or_url: Any, **named: Any) -> tuple[str, Any, dict[str, Any]]:
    return method, str_or_url, named


def _url(session: Any, target: Any) -> str:
    try:
        return str(session._build_url(target))
    except ValueError:  # aiohttp will say it in its own words
        return ""


def _body(
    session: Any, json: Any = None, data: Any = None, compress: Any = None, **_: Any
) -> bytes | None:
    """Give the body; None for a form, a file or a generator, and for what is to be compressed."""
    body = data if json is None else session.json_serialize(json)
    if isinstance(body, str):
        body = body.encode()
    return body if isinstance(body, bytes) and not compress else None


def _asking(
    session: Any, recording: Recording, headers: Any = None, json: Any = None, **named: Any
) -> dict[str, Any]:
    asking = type(session.headers)(headers or ())
    if json is not None and "Content-Type" not in session.headers:
        asking.setdefault("Content-Type", "application/json")
    if "Content-Length" in asking:
        asking["Content-Length"] = str(len(recording.body))
    return {**named, "headers": asking, "data": recording.body}


def _reader_class(module: Any) -> Any:
    protocol = module.base_protocol.BaseProtocol

    class Pieces(module.StreamReader):  # type: ignore[misc]
        """A response's content, which passes through a recording when more of it is wanted."""

        def __init__(self, recording: Recording, source: Any, *, chunked: bool) -> None:
            loop = source._loop
            super().__init__(protocol(loop), source.get_read_buffer_limits()[0], loop=loop)
            self._recording, self._source = recording, source
            self._chunked, self._fed = chunked, False
            if chunked:  # then a client may ask where chunks end
                self.begin_http_chunk_receiving()

        async def _wait(self, func_name: str) -> None:
            try:
                piece, ends_chunk = await self._more()
                ended = not piece and not ends_chunk
                shown = self._recording.finish() if ended else self._recording.feed(piece)
            except BaseException as error:
                self._recording.broke(error)
                raise
            self._fed = self._fed or bool(shown)
            self.feed_data(shown)
            if self._chunked and self._fed and (ended or ends_chunk):
                self._fed = False
                self.end_http_chunk_receiving()
            if ended:
                self.feed_eof()

        async def _more(self) -> tuple[bytes, bool]:
            """Give the next piece, and whether it ends a chunk; neither: it was the last."""
            if not self._chunked:
                return await self._source.readany(), False
            piece: tuple[bytes, bool] = await self._source.readchunk()
            return piece

        def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
            # How aiohttp says that a response is released or closed
            self._recording.abandon()
            self._source.set_exception(exc, *cause)
            super().set_exception(exc, *cause)

    return Pieces
