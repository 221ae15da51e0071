"""Keeps web pages out: the ASGI application in front of every HTTP application of ltrain.

A page that a user opens can make the browser send requests to this machine. It cannot choose the
headers `Origin`, `Sec-Fetch-*` and `Host`, so these decide, before anything else is read:

* Any `Origin` is refused. Programs send none.
* Any `Sec-Fetch-Site` other than `none` (the address bar) and `same-origin` is refused.
* A `Host` that is not listed is refused: a page can bind a name of its own to 127.0.0.1, and then
  has the same origin. Listed are the names of this machine, the address that was connected to, and
  what the operator lists.
* An answer is never a script, a frame or an image of another page.
"""

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from ltrain_collector.asgi import Message, Receive, Scope, Send, reply
from ltrain_collector.listen.refusals import Reason, Refusals
from ltrain_instrument.loopback import NAMES

App = Callable[[Scope, Receive, Send], Awaitable[None]]

FROM_THE_USER = ("none", "same-origin")
"""Values of Sec-Fetch-Site of requests that no other page made."""

SUBRESOURCES = re.compile(r"(?!document$|empty$).+")
"""Values of Sec-Fetch-Dest that no program sends; Node's own fetch sends Sec-Fetch-Mode."""

HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]*)(?::\d*)?", re.IGNORECASE)

SEALED = (
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; sandbox"),
)
"""Headers of every answer: a browser that opens it runs nothing of it, whatever a trace holds."""

DENIED = (401, 403)

MAPPED = "::ffff:"
"""How a socket of both kinds names an IPv4 address."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why a request is refused, and the sentence that its sender reads."""

    reason: Reason
    sentence: str


class Guard:
    """Lets an application answer programs only."""

    def __init__(self, app: App, hosts: Iterable[str], refusals: Refusals) -> None:
        """`hosts` are names and addresses that requests may name beside this machine's."""
        self._app = app
        self._hosts = frozenset(_bare(host) for host in (*NAMES, *hosts))
        self._refusals = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        answer = self._sealed(send)
        blocked = self._blocked(scope)
        if blocked is None:
            await self._app(scope, receive, answer)
            return
        self._refusals.add(blocked.reason)
        await reply(_sealed(send), 403, f"{blocked.sentence}\n".encode())

    def _blocked(self, scope: Scope) -> Blocked | None:
        headers = [(name.lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        names = {name for name, _ in headers}
        if b"origin" in names:
            return ORIGIN
        for name, value in headers:
            if name == b"sec-fetch-site" and value not in FROM_THE_USER:
                return FETCH_SITE
            if name == b"sec-fetch-dest" and b"sec-fetch-site" not in names:
                if SUBRESOURCES.fullmatch(value):
                    return FETCH_SITE
            elif name == b"host" and not self._listed(value, scope):
                return _unlisted(value)
        return None

    def _listed(self, host: str, scope: Scope) -> bool:
        found = HOST.fullmatch(host.strip())
        if found is None:
            return False
        name = _bare(found[1])
        address = str((scope.get("server") or ("",))[0]).removeprefix(MAPPED)
        return name in self._hosts or name in ("", address)

    def _sealed(self, send: Send) -> Send:
        sealed = _sealed(send)

        async def counted(message: Message) -> None:
            if message.get("status") in DENIED:
                self._refusals.add(Reason.DENIED)
            await sealed(message)

        return counted


ORIGIN = Blocked(
    Reason.ORIGIN,
    "A request with an Origin header is refused: web pages are not served, only programs, which "
    "send none.",
)
FETCH_SITE = Blocked(
    Reason.FETCH_SITE,
    "A request that a web page of another site makes is refused: only programs are served, and "
    "what a user types into the address bar.",
)


def _unlisted(host: str) -> Blocked:
    shown = re.sub(r"[^\x20-\x7e]", "", host)[:100]
    return Blocked(
        Reason.HOST,
        f"The host '{shown}' is not listed here, so the request is refused: ask by 127.0.0.1 or "
        "localhost, or list the name with `--allow-host` or in LTRAIN_ALLOW_HOSTS.",
    )


def _bare(host: str) -> str:
    return host.strip().lower().removeprefix("[").removesuffix("]")


def _sealed(send: Send) -> Send:
    async def sealed(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *SEALED]
        await send(message)

    return sealed
