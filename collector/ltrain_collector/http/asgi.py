"""ASGI helpers of both HTTP apps: read a body in parts, and send a response."""

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from ltrain_instrument.errors import LtrainError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class HttpError(LtrainError, ValueError):
    """An error that is sent as an HTTP status and a message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ClientGone(LtrainError, ConnectionError):
    """The client closed the connection before the end of its request or response."""


def request_headers(scope: Scope) -> dict[str, str]:
    return {
        name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
    }


async def body_parts(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the parts of the body as they arrive.

    Raises:
        ClientGone: the client disconnected before the end of the body.
    """
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("The client disconnected.")
        yield message.get("body", b"")
        more = message.get("more_body", False)


def body_too_large(limit: int) -> HttpError:
    """Return the error for a body of more than `limit` bytes."""
    return HttpError(
        413, f"The body is larger than the limit of {limit >> 20} MiB. Send less at a time."
    )


async def send_response(
    send: Send, status: int, body: bytes, kind: str = "text/plain", **headers: str
) -> None:
    """Send a complete response; underscores in header names become dashes."""
    fields = {"content-type": kind, "content-length": str(len(body)), **headers}
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
