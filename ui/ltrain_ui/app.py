"""The application: the pages, sign-in, files of the browser, and pages for errors."""

from collections.abc import Iterable
from importlib.resources import files
from urllib.parse import parse_qs, urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ltrain_collector.errors import NoStore, NotSaved, StoreUnreachable
from ltrain_instrument.errors import LtrainError
from ltrain_transforms.errors import NothingToShow
from ltrain_transforms.show import page_asset
from ltrain_ui.guard import PageGuard, cookie_name
from ltrain_ui.pages import Renderer, page_routes
from ltrain_ui.sessions import LIFETIME, Sessions
from ltrain_ui.sign_in import SignIn
from ltrain_ui.sources import Sources

SHARED = ("page.css", "page.js")
"""Files of the browser that are those of `ltrain show --html`."""
FILES = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "ui.css": "text/css",
    "tables.js": "text/javascript",
    "ui.js": "text/javascript",
    "sign_in.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
"""Files of the browser, and their types."""
MAX_SIGN_IN_BYTES = 8192
"""Bytes of a request to sign in: a key, and the address of the page that was opened."""
LIMITED = "Too many wrong attempts to sign in. Try again in a minute."


class Site:
    """Sign-in, and the pages for errors."""

    def __init__(self, sessions: Sessions, way: SignIn, renderer: Renderer, secure: bool) -> None:
        self._sessions = sessions
        self._way = way
        self._renderer = renderer
        self._secure = secure

    async def sign_in(self, request: Request) -> Response:
        """Exchange the code of the link, or a key, for a cookie."""
        client = request.client.host if request.client else ""
        if self._sessions.is_limited(client):
            return self._refused(429, LIMITED)
        secret, page = self._parse(await _read_body(request))
        visitor = self._way.admit(secret)
        if visitor is None:
            self._sessions.add_failure(client)
            return self._refused(403, self._way.refusal, page)
        response: Response = PlainTextResponse("")
        if self._way.by_key:
            response = RedirectResponse(page, 303)
        response.set_cookie(
            cookie_name(request.scope),
            self._sessions.begin(visitor),
            max_age=LIFETIME,
            httponly=True,
            samesite="strict",
            secure=self._secure,
        )
        return response

    def _parse(self, body: str) -> tuple[str, str]:
        """Return the code or key, and the address of the page to show after it."""
        if not self._way.by_key:
            return body, "/"
        fields = parse_qs(body)
        key, page = (fields.get(name, [""])[0].strip() for name in ("key", "page"))
        return key, page if _is_own_page(page) else "/"

    def _refused(self, status: int, sentence: str, page: str = "/") -> Response:
        if not self._way.by_key:
            return PlainTextResponse(f"{sentence}\n", status)
        return self._sign_in_page(status, sentence, page)

    def _sign_in_page(self, status: int, sentence: str, page: str) -> Response:
        values = {"by_key": self._way.by_key, "sentence": sentence, "page": page}
        return self._renderer.page("sign_in.html.j2", status, title="Sign in", **values)

    async def refuse(self, request: Request, error: Exception) -> Response:
        """Show an error that the user can fix."""
        if isinstance(error, NothingToShow):
            status = 404
        else:
            status = 503 if isinstance(error, NoStore | StoreUnreachable | NotSaved) else 400
        return self._renderer.page(
            "message.html.j2",
            status,
            title="Not saved" if request.method == "POST" else "Nothing to show",
            message=str(error),
            near=getattr(error, "near", ()),
        )

    async def absent(self, request: Request, error: Exception) -> Response:
        """Return the page for an address without one."""
        message = f"There is no page {request.url.path}."
        return self._renderer.page("message.html.j2", 404, title="No such page", message=message)

    async def fail(self, request: Request, error: Exception) -> Response:
        """Return the page for an unexpected error, of which the terminal has the traceback."""
        message = f"{type(error).__name__}: {error}. The terminal of `ltrain ui` has the details."
        return self._renderer.page(
            "message.html.j2", 500, title="Unexpected error", message=message
        )

    async def ask_to_sign_in(self, request: Request) -> Response:
        """Return the page for a browser without a session."""
        address = request.url.replace(scheme="", netloc="", fragment="")
        page = str(address) if request.method == "GET" and _is_own_page(str(address)) else "/"
        return self._sign_in_page(401, "", page)


async def _read_body(request: Request) -> str:
    """Return the beginning of a body."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_SIGN_IN_BYTES:
            break
    return body[:MAX_SIGN_IN_BYTES].decode("utf-8", "replace")


def _is_own_page(address: str) -> bool:
    """Return whether an address is a path of this server, however a browser reads it."""
    if not address.startswith("/") or address.startswith("//") or "\\" in address:
        return False
    try:
        parts = urlsplit(address)
    except ValueError:
        return False
    return address.isprintable() and not parts.scheme and not parts.netloc


def send_file(request: Request) -> Response:
    """Return a style sheet or a script."""
    name = request.path_params["name"]
    if name not in FILES:
        return PlainTextResponse("There is no such file.\n", 404)
    own = files("ltrain_ui").joinpath("static", name)
    text = page_asset(name) if name in SHARED else own.read_text("utf-8")
    return Response(text, media_type=FILES[name])


STATIC = Route("/static/{name}", send_file)


def make_app(
    sources: Sources,
    sessions: Sessions,
    way: SignIn,
    *,
    secure: bool = False,
    hosts: Iterable[str] = (),
) -> ASGIApp:
    """Return the application for browsers.

    Args:
        way: how a browser signs in.
        secure: whether it is served with TLS.
        hosts: allowed values of `Host`, in addition to this machine's names.
    """
    renderer = Renderer()
    site = Site(sessions, way, renderer, secure)
    session = Route("/session", site.sign_in, methods=["POST"])
    app = Starlette(
        routes=[*page_routes(sources), session, STATIC],
        exception_handlers={LtrainError: site.refuse, 404: site.absent, 500: site.fail},
    )
    every = Route("/{path:path}", site.ask_to_sign_in, methods=["GET", "POST"])
    return PageGuard(app, sessions, way, Starlette(routes=[every]), hosts)


def make_open_app(sources: Sources) -> ASGIApp:
    """Return the pages without sign-in, for this process alone; errors are raised."""
    return Starlette(routes=[*page_routes(sources), STATIC])
