"""What both HTTP apps need of ASGI: read a bounded body, answer, keep strangers out."""

import zlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from ltrain_instrument.errors import LtrainError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]", "")


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


def guard(headers: Mapping[str, str]) -> None:
    """Refuse what a web page in this machine's browser could send: we have no keys to check.

    Raises:
        Refused: when the request comes from a page, or names another host.
    """
    host = headers.get("host", "").rsplit(":", 1)[0]
    if host not in LOCAL_HOSTS or "origin" in headers:
        raise Refused(
            403, "Only programs on this machine are served here, by 127.0.0.1 or localhost."
        )


async def body_of(receive: Receive, limit: int) -> bytes:
    """Read the whole body.

    Raises:
        ClientGone: when it never ends.
        Refused: when it is longer than `limit`.
    """
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("The client went away.")
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_long(limit)
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


def gunzip(body: bytes, limit: int) -> bytes:
    """Decompress gzip.

    Raises:
        Refused: when it is none, or longer than `limit` once unpacked.
    """
    unpacker = zlib.decompressobj(wbits=31)
    try:
        plain = unpacker.decompress(body, limit)
    except zlib.error as error:
        raise Refused(400, f"The body is not gzip: {error}.") from error
    if unpacker.unconsumed_tail:
        raise _too_long(limit)
    if not unpacker.eof:
        raise Refused(400, "The gzip body ends too early.")
    return plain


async def reply(
    send: Send, status: int, body: bytes, kind: str = "text/plain", **headers: str
) -> None:
    """Answer at once; a header's underscores are dashes."""
    fields = {"content-type": kind, "content-length": str(len(body)), **headers}
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def _too_long(limit: int) -> Refused:
    return Refused(413, f"The body is longer than {limit >> 20} MiB. Send less at a time.")
