"""The application: the pages, sign-in, files of the browser, and pages for errors."""

from collections.abc import Callable
from importlib.resources import files

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ltrain_collector.errors import NoStore, StoreUnreachable
from ltrain_instrument.errors import LtrainError
from ltrain_transforms.errors import NothingToShow
from ltrain_transforms.show import page_asset
from ltrain_ui.guard import PageGuard, cookie_name
from ltrain_ui.pages import Renderer, page_routes
from ltrain_ui.sessions import LIFETIME, Sessions
from ltrain_ui.sources import Sources

SHARED = ("page.css", "page.js")
"""Files of the browser that are those of `ltrain show --html`."""
FILES = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "ui.css": "text/css",
    "ui.js": "text/javascript",
    "sign_in.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
"""Files of the browser, and their types."""
MAX_CODE_BYTES = 200


class Site:
    """Sign-in, and the pages for errors."""

    def __init__(
        self, sessions: Sessions, renderer: Renderer, announce: Callable[[], None]
    ) -> None:
        self._sessions = sessions
        self._renderer = renderer
        self._announce = announce

    async def sign_in(self, request: Request) -> Response:
        """Exchange the code of the link for a cookie."""
        if self._sessions.is_limited():
            return PlainTextResponse("Too many wrong codes. Try again in a minute.\n", 429)
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MAX_CODE_BYTES:
                break
        token = self._sessions.sign_in(body[:MAX_CODE_BYTES].decode("utf-8", "replace"))
        if token is None:
            return PlainTextResponse("This link was used, or `ltrain ui` has ended.\n", 403)
        response = PlainTextResponse("")
        name = cookie_name(request.scope)
        response.set_cookie(name, token, max_age=LIFETIME, httponly=True, samesite="strict")
        self._announce()
        return response

    async def refuse(self, request: Request, error: Exception) -> Response:
        """Show an error that the user can fix."""
        if isinstance(error, NothingToShow):
            status = 404
        else:
            status = 503 if isinstance(error, NoStore | StoreUnreachable) else 400
        return self._renderer.page(
            "message.html.j2",
            status,
            title="Nothing to show",
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
        return self._renderer.page("sign_in.html.j2", 401, title="Sign in")


def send_file(request: Request) -> Response:
    """Return a style sheet or a script."""
    name = request.path_params["name"]
    if name not in FILES:
        return PlainTextResponse("There is no such file.\n", 404)
    own = files("ltrain_ui").joinpath("static", name)
    text = page_asset(name) if name in SHARED else own.read_text("utf-8")
    return Response(text, media_type=FILES[name])


STATIC = Route("/static/{name}", send_file)


def make_app(sources: Sources, sessions: Sessions, announce: Callable[[], None]) -> ASGIApp:
    """Return the application for browsers.

    Args:
        announce: called when the code of the link was used.
    """
    renderer = Renderer()
    site = Site(sessions, renderer, announce)
    session = Route("/session", site.sign_in, methods=["POST"])
    app = Starlette(
        routes=[*page_routes(sources, renderer), session, STATIC],
        exception_handlers={LtrainError: site.refuse, 404: site.absent, 500: site.fail},
    )
    sign_in = Starlette(routes=[Route("/{path:path}", site.ask_to_sign_in)])
    return PageGuard(app, sessions, sign_in)


def make_open_app(sources: Sources) -> ASGIApp:
    """Return the pages without sign-in, for this process alone; errors are raised."""
    return Starlette(routes=[*page_routes(sources, Renderer()), STATIC])
