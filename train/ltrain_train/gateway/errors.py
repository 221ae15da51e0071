"""Bodies of the gateway's requests and responses, and its errors as OpenAI's clients read them."""

from asyncio import CancelledError
from http import HTTPStatus

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

JSON_HEADERS = [(b"content-type", b"application/json")]
CLOSE = (b"connection", b"close")


MAX_SENTENCE = 4096
"""Maximum characters of an error, which may quote the request."""


class Refused(Exception):
    """A refused request: an HTTP status and a message."""

    def __init__(self, status: HTTPStatus, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message[:MAX_SENTENCE]
        self.retry_after = retry_after
        """Seconds after which the client should send the request again."""

    @property
    def body(self) -> bytes:
        """The JSON body of the error response."""
        error = {
            "message": self.message,
            "type": _error_type(self.status),
            "code": self.status.value,
        }
        return orjson.dumps({"error": {**error, "param": None}})


class StopGuard:
    """Answers a request that the end of the gateway cancels with status 503, so that programs send
    it again; uvicorn would answer 500, which ends them.

    uvicorn closes a connection after an unexpected error. The response of status 500 says so, since
    the client's next request on that connection would fail.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        started = False

        async def send_counted(message: Message) -> None:
            nonlocal started
            started = True
            if message.get("status") == HTTPStatus.INTERNAL_SERVER_ERROR:
                message = {**message, "headers": [*message["headers"], CLOSE]}
            await send(message)

        try:
            await self._app(scope, receive, send_counted)
        except CancelledError:
            if started:
                return  # uvicorn logs a line, not a traceback, and breaks the connection off
            sentence = "The gateway is being stopped. Send the request again."
            refused = Refused(HTTPStatus.SERVICE_UNAVAILABLE, sentence)
            await send_json(send, refused.status, refused.body)


def json_response(content: object, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Return a response with JSON."""
    return Response(orjson.dumps(content), status, media_type="application/json")


async def read_body(request: Request, what: str, limit: int) -> bytes:
    """Return the body of a request.

    Args:
        request: the request.
        what: the noun for it in the error.
        limit: its maximum bytes.
    """
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            raise Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"A {what} has at most {limit >> 20} MiB."
            )
    return bytes(body)


async def send_json(send: Send, status: int, body: bytes) -> None:
    """Send a complete JSON response."""
    length = (b"content-length", str(len(body)).encode())
    start = {"type": "http.response.start", "status": status, "headers": [*JSON_HEADERS, length]}
    await send(start)
    await send({"type": "http.response.body", "body": body})


def _error_type(status: HTTPStatus) -> str:
    return status.phrase.lower().replace(" ", "_") + "_error"
