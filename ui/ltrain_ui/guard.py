"""Checks in front of every page: who may ask, and what a browser may do with the response.

* A `Host` that is not allowed is refused: a page of another site can bind its own name to
  127.0.0.1, and then has the same origin.
* Requests that a page of another site makes are refused, whatever cookie they carry.
* Without the cookie of a session, only the sign-in page and its files are served. The key of a
  session is checked at every request.
* A browser loads only files of this server, and no other page can frame one.
"""

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ltrain_collector.errors import HttpError
from ltrain_collector.http import USER_SITES, AllowedHosts, set_headers
from ltrain_ui.sessions import CURRENT, Sessions, Visitor
from ltrain_ui.sign_in import SignIn

COOKIE = "ltrain-ui"
"""The name of the cookie, before the port: a browser sends cookies to all ports of a host."""
PUBLIC = ("/session", "/static/")
"""The beginnings of paths that need no session."""
WRONG_HOST = (
    "This name is not allowed in the address. Use 127.0.0.1 or localhost, or list the name with "
    "`ltrain ui --allow-host` or in LTRAIN_ALLOW_HOSTS.\n"
)
HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
        b"img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    # with `no-referrer` a form of these pages would have the Origin `null`
    (b"referrer-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
"""Headers of every response."""


def cookie_name(scope: Scope) -> str:
    """Return the name of the session's cookie on this port."""
    return f"{COOKIE}-{(scope.get('server') or ('', 0))[1]}"


class PageGuard:
    """Passes requests of a browser that has signed in to an application."""

    def __init__(
        self,
        app: ASGIApp,
        sessions: Sessions,
        way: SignIn,
        sign_in: ASGIApp,
        hosts: Iterable[str] = (),
    ) -> None:
        """Take the application.

        Args:
            way: how a browser signs in.
            sign_in: the page for a browser without a session.
            hosts: allowed values of `Host`, in addition to this machine's names.
        """
        self._app = app
        self._sessions = sessions
        self._way = way
        self._sign_in = sign_in
        self._hosts = AllowedHosts(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        app: ASGIApp = self._refusal(scope) or self._chosen(scope)
        await app(scope, receive, set_headers(send, HEADERS))

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if not self._hosts.contain(headers.get("host", ""), scope):
            return PlainTextResponse(WRONG_HOST, 403)
        origin = headers.get("origin")
        if headers.get("sec-fetch-site", "none") not in USER_SITES or (
            origin is not None and urlsplit(origin).netloc != headers.get("host")
        ):
            return PlainTextResponse("Requests from pages of other sites are refused.\n", 403)
        return None

    def _chosen(self, scope: Scope) -> ASGIApp:
        if scope["path"].startswith(PUBLIC):
            return self._app
        token = Request(scope).cookies.get(cookie_name(scope))
        try:
            visitor = self._admitted(token)
        except HttpError as error:
            return PlainTextResponse(f"{error}\n", error.status)
        if visitor is None:
            return self._sign_in
        CURRENT.set(visitor)  # each request has a context of its own
        # a response without an end asks again
        scope["state"] = {"is_admitted": lambda: self._admitted(token) is not None}
        return self._app

    def _admitted(self, token: str | None) -> Visitor | None:
        """Return whose session a token is of, if this person may still read.

        Raises:
            HttpError: when that cannot be checked.
        """
        visitor = self._sessions.visitor(token)
        if visitor is not None and not self._way.still_admits(visitor):
            self._sessions.end(token)
            return None
        return visitor
