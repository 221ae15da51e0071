"""What both HTTP apps need of ASGI: read a body in parts, and answer."""

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from ltrain_instrument.errors import LtrainError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Refused(LtrainError, ValueError):
    """A request that is answered with an HTTP error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ClientGone(LtrainError, ConnectionError):
    """The client closed the connection before its request was whole."""


def headers_of(scope: Scope) -> dict[str, str]:
    return {
        name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
    }


async def parts_of(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the body's parts as they come.

    Raises:
        ClientGone: when it never ends.
    """
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("The client went away.")
        yield message.get("body", b"")
        more = message.get("more_body", False)


def too_long(limit: int) -> Refused:
    """Return the refusal of a body of more than `limit` bytes."""
    return Refused(413, f"The body is longer than {limit >> 20} MiB. Send less at a time.")


async def reply(
    send: Send, status: int, body: bytes, kind: str = "text/plain", **headers: str
) -> None:
    """Answer at once; a header's underscores are dashes."""
    fields = {"content-type": kind, "content-length": str(len(body)), **headers}
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
