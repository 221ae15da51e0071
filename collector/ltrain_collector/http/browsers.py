"""Refuse requests of web pages: an ASGI application in front of each HTTP application of ltrain.

A web page can make the browser send requests to this machine. It cannot choose the headers
`Origin`, `Sec-Fetch-*` and `Host`, so they are checked before anything else is read:

* Any `Origin` is refused. Programs send none.
* Any `Sec-Fetch-Site` other than `none` (the address bar) and `same-origin` is refused.
* A `Host` that is not allowed is refused: a page can bind its own name to 127.0.0.1, and then has
  the same origin. Allowed are the names of this machine, the address of the connection, and the
  names that the operator lists.
* No response can be a script, a frame or an image of another page.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ltrain_collector.http.refusals import RefusalCounts, RefusalReason
from ltrain_instrument.machine import LOOPBACK_NAMES

USER_SITES = ("none", "same-origin")
"""Values of Sec-Fetch-Site in requests that no other page made."""

SUBRESOURCES = re.compile(r"(?!document$|empty$).+")
"""Values of Sec-Fetch-Dest that no program sends."""

HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]*)(?::\d*)?", re.IGNORECASE)

RESPONSE_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; sandbox"),
]
"""Headers of every response, so that a browser runs nothing in it, whatever a trace contains."""

DENIED_STATUSES = (401, 403)

IPV4_MAPPED = "::ffff:"
"""Prefix of an IPv4 address on a socket for IPv4 and IPv6."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason of a refusal, and the message in the response."""

    reason: RefusalReason
    sentence: str


class AllowedHosts:
    """The names and addresses that a request may have in `Host`: this machine's, and others."""

    def __init__(self, others: Iterable[str] = ()) -> None:
        self._names = frozenset(_host_name(host) for host in (*LOOPBACK_NAMES, *others))

    def contain(self, host: str, scope: Scope) -> bool:
        """Return whether the value of `Host` is allowed; '' and the connection's address are."""
        match = HOST.fullmatch(host.strip())
        if match is None:
            return False
        name = _host_name(match[1])
        address = str((scope.get("server") or ("",))[0]).removeprefix(IPV4_MAPPED)
        return name in self._names or name in ("", address)


class BrowserGuard:
    """Passes requests of programs to an application, and refuses those of web pages."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str], refusals: RefusalCounts) -> None:
        """Allow the names and addresses `hosts` in `Host`, in addition to this machine's."""
        self._app = app
        self._hosts = AllowedHosts(hosts)
        self._refusals = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        answer = self._with_headers(send)
        refusal = self._check(scope)
        if refusal is None:
            await self._app(scope, receive, answer)
            return
        self._refusals.add(refusal.reason)
        response = PlainTextResponse(f"{refusal.sentence}\n", 403)
        await response(scope, receive, set_headers(send, RESPONSE_HEADERS))

    def _check(self, scope: Scope) -> Refusal | None:
        headers = [(name.lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        names = {name for name, _ in headers}
        if b"origin" in names:
            return ORIGIN
        for name, value in headers:
            if name == b"sec-fetch-site" and value not in USER_SITES:
                return FETCH_SITE
            if name == b"sec-fetch-dest" and b"sec-fetch-site" not in names:
                if SUBRESOURCES.fullmatch(value):
                    return FETCH_SITE
            elif name == b"host" and not self._hosts.contain(value, scope):
                return _unlisted(value)
        return None

    def _with_headers(self, send: Send) -> Send:
        with_headers = set_headers(send, RESPONSE_HEADERS)

        async def counted(message: Message) -> None:
            if message.get("status") in DENIED_STATUSES:
                self._refusals.add(RefusalReason.DENIED)
            await with_headers(message)

        return counted


ORIGIN = Refusal(
    RefusalReason.ORIGIN,
    "Requests with an Origin header are refused: ltrain serves programs, which send none, and no "
    "web pages.",
)
FETCH_SITE = Refusal(
    RefusalReason.FETCH_SITE,
    "Requests from a web page of another site are refused: ltrain serves programs and addresses "
    "that a user types into the address bar.",
)


def _unlisted(host: str) -> Refusal:
    shown = re.sub(r"[^\x20-\x7e]", "", host)[:100]
    return Refusal(
        RefusalReason.HOST,
        f"The host '{shown}' is not allowed, so the request is refused. Use 127.0.0.1 or "
        "localhost, or list the name in LTRAIN_ALLOW_HOSTS or with `ltrain up --allow-host`.",
    )


def _host_name(host: str) -> str:
    return host.strip().lower().removeprefix("[").removesuffix("]")


def set_headers(send: Send, headers: Sequence[tuple[bytes, bytes]]) -> Send:
    """Return a `send` whose responses have these headers, in place of others of the same names."""
    names = frozenset(name for name, _ in headers)

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            others = [pair for pair in message.get("headers", ()) if pair[0] not in names]
            message = {**message, "headers": [*others, *headers]}
        await send(message)

    return with_headers
