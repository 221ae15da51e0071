"""The pages: each reads what it shows, and renders it with the templates of `ltrain show`."""

from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from ltrain_collector.errors import NoStore, QueryFailed, StoreUnreachable
from ltrain_instrument.errors import LtrainError
from ltrain_transforms.errors import NothingToShow
from ltrain_transforms.reports import (
    Facts,
    Grid,
    GroupReference,
    Kind,
    Reference,
    Report,
    WaveReference,
    compare,
    dataset_table,
    policy_table,
    read_scores,
    rules_comparison,
    run_table,
    task_report,
    wave_report,
)
from ltrain_transforms.show import (
    SHADES,
    Group,
    RolloutTree,
    compare_task,
    look_up_in_home,
    look_up_in_store,
    page_asset,
    page_templates,
    read_group,
    recipe_or_default,
    template_name,
    trained_rows,
    trained_run_report,
)
from ltrain_ui.addresses import (
    FOLDERS,
    address_of,
    compare_address,
    rules_address,
    task_address,
    tokens_address,
)
from ltrain_ui.guard import PageGuard, cookie_name
from ltrain_ui.listing import KeyLink, ListQuery, neighbours, parse_number, read_page
from ltrain_ui.queries import NAMED, export_csv, run_query
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
FRAME = "frame.html.j2"
MAX_CODE_BYTES = 200


class Pages:
    """The functions that answer each address."""

    def __init__(self, sources: Sources, sessions: Sessions, announce: Callable[[], None]) -> None:
        self._sources = sources
        self._sessions = sessions
        self._announce = announce
        self._templates = _templates()

    def routes(self) -> list[Route]:
        """Return the addresses and their functions."""
        in_store = [
            Route(f"/{FOLDERS[kind]}/{{id:path}}", self._execution(kind))
            for kind in FOLDERS
            if kind in ("rollout", "trace", "session", "span")
        ]
        return [
            Route("/", self.overview),
            Route("/runs/{run:path}/waves/{wave:int}", self.wave),
            Route("/runs/{run:path}/waves/{wave:int}/rules", self.rules),
            Route("/runs/{run:path}/tasks/{task:path}", self.task),
            Route("/runs/{run:path}", self.run),
            Route("/groups", self.group),
            Route("/rollouts", self.rollouts),
            Route("/rollouts/{id}/tokens", self.tokens),
            *in_store,
            Route("/policies/{id}", self.policy),
            Route("/datasets/{id}", self.dataset),
            Route("/compare", self.compare),
            Route("/find", self.find),
            Route("/sql", self.sql),
            Route("/sql.csv", self.csv),
            Route("/session", self.sign_in, methods=["POST"]),
            Route("/static/{name}", self.file),
        ]

    def overview(self, request: Request) -> Response:
        """Show the runs of the store, and the policies and datasets of the home."""
        sources = self._sources
        store: Grid | Facts
        try:
            store = sources.read(lambda store: run_table(store, sources.trusted_senders()))
        except (NoStore, StoreUnreachable) as error:
            store = Facts("Store", (("store", str(error)),))
        parts = (store, policy_table(sources.home), dataset_table(sources.home))
        return self._shown(Report("Runs, policies and datasets", "", parts, {}))

    def run(self, request: Request) -> Response:
        """Show a run: curves by evaluation and rule, and its waves."""
        name, sources = request.path_params["run"], self._sources
        trust = sources.trusted_senders()
        return self._shown(
            sources.read(lambda store: trained_run_report(store, sources.home, name, trust))
        )

    def wave(self, request: Request) -> Response:
        """Show a wave: what is left of its rollouts at each step, and its groups."""
        wave, sources = _wave(request), self._sources
        trust = sources.trusted_senders()
        report = sources.read(lambda store: wave_report(store, sources.home, wave, trust))
        return self._shown(report, [("What rules give on it", "r", rules_address(wave))])

    def rules(self, request: Request) -> Response:
        """Show what the recipe gives on a wave now, and what it gave when it was trained."""
        wave, sources = _wave(request), self._sources
        recipe, label = sources.load_recipe()
        report = sources.read(
            lambda store: rules_comparison(store, sources.home, recipe, label, wave)
        )
        return self._shown(report, [("Wave", "u", str(address_of(wave)))])

    def task(self, request: Request) -> Response:
        """Show a task of a run, wave by wave."""
        place, sources = request.path_params, self._sources
        name, trust = request.query_params.get("name", "reward"), sources.trusted_senders()
        run, task = place["run"], place["task"]
        return self._shown(sources.read(lambda store: task_report(store, run, task, name, trust)))

    def group(self, request: Request) -> Response:
        """Show the rollouts of a task in a wave side by side."""
        values, sources = request.query_params, self._sources
        wave = parse_number("wave", values.get("wave", ""))
        place = GroupReference(
            values.get("run", ""), values.get("mode", "train"), wave, values.get("task", "")
        )
        recipe, label = recipe_or_default(sources.recipe)
        group = sources.read(lambda store: read_group(store, recipe, label, place))
        waves = task_address(place.run, place.task)
        return self._group(group, group.title, [("This task in all waves", "w", waves)])

    def _group(self, group: Group, title: str, links: Sequence[KeyLink] = ()) -> Response:
        place = group.reference
        return self._page(
            "group.html.j2",
            title=title,
            group=group,
            links=links,
            run=address_of(Reference(Kind.RUN, place.run)),
            wave=address_of(WaveReference(place.run, place.mode, place.wave)),
        )

    def rollouts(self, request: Request) -> Response:
        """List rollouts and traces by a filter."""
        query = ListQuery.parse(request.query_params)
        page = self._sources.read(lambda store: read_page(store, query))
        return self._page("rollouts.html.j2", title="Rollouts and traces", query=query, page=page)

    def _execution(self, kind: str) -> Callable[[Request], Response]:
        def execution(request: Request) -> Response:
            """Show a rollout, trace, session or span as a tree of calls."""
            shown = self._look_up(f"{kind}:{request.path_params['id']}")
            query = ListQuery.parse(request.query_params)
            links = [("List", "u", query.address())]
            if query.values and isinstance(shown, RolloutTree):
                unit = shown.rollout
                links += self._sources.read(lambda store: neighbours(store, query, unit))
            if isinstance(shown, RolloutTree) and shown.kind == "rollout":
                links.append(("Tokens", "t", tokens_address(shown.rollout)))
            return self._shown(shown, links)

        return execution

    def tokens(self, request: Request) -> Response:
        """Show the rows of a rollout as they were trained."""
        rollout, by = request.path_params["id"], request.query_params.get("by")
        rows = trained_rows(self._sources.home, rollout)
        shade = by if by in SHADES else SHADES[0]
        links = [("Rollout", "u", address_of(Reference(Kind.ROLLOUT, rollout)))]
        title = f"trained rows of rollout {rollout}"
        values = {"rollout": rollout, "rows": rows, "by": shade, "shades": SHADES}
        return self._page("tokens.html.j2", title=title, links=links, **values)

    def policy(self, request: Request) -> Response:
        """Show a version of a policy and its lineage."""
        report = self._in_home("policy", request.path_params["id"])
        own, *ancestors = report.data["lineage"]
        names = [f"{own['policy']}@{version['version']}" for version in (own, *ancestors[:1])]
        address = compare_address(names[-1], names[0], "val")
        links = [("Compare with its parent", "c", address)] if ancestors else []
        return self._shown(report, links)

    def dataset(self, request: Request) -> Response:
        """Show a dataset, or how it differs from another one."""
        against = request.query_params.get("against")
        return self._shown(self._in_home("dataset", request.path_params["id"], against))

    def compare(self, request: Request) -> Response:
        """Compare two versions of a policy, or their rollouts of one task side by side."""
        sources, values = self._sources, request.query_params
        a, b = (values.get(name, "").strip() for name in ("a", "b"))
        mode, name = values.get("mode") or "val", values.get("name") or "reward"
        fields = (("a", a), ("b", b), ("mode", mode), ("name", name))
        if not a or not b:
            title = "Compare two versions of a policy"
            return self._page("compare.html.j2", title=title, fields=fields, found=None)
        trust, task = sources.trusted_senders(), values.get("task")
        rows = sources.read(lambda store: read_scores(store, a, b, mode, name, trust))
        if task is None:
            found = compare(rows, a, b, mode, name)
            return self._page(
                "compare.html.j2", title=f"{b} against {a}", fields=fields, found=found
            )
        recipe, label = recipe_or_default(sources.recipe)
        group = sources.read(lambda store: compare_task(store, recipe, label, rows, mode, task))
        links = [("All tasks", "u", compare_address(a, b, mode, name))]
        return self._group(group, f"task {task}: {b} against {a}", links)

    def sql(self, request: Request) -> Response:
        """Run a query, and show the first rows of its result."""
        query, result, error = request.query_params.get("query", "").strip(), None, None
        try:
            if query:
                result = self._sources.read(lambda store: run_query(store, query))
        except QueryFailed as failure:
            error = str(failure)
        values = {"query": query, "result": result, "error": error, "named": NAMED}
        return self._page("sql.html.j2", 400 if error else 200, title="SQL", **values)

    def csv(self, request: Request) -> Response:
        """Return the result of a query as a CSV file."""
        query = request.query_params.get("query", "")
        parts = self._sources.read(lambda store: export_csv(store, query))
        headers = {"content-disposition": 'attachment; filename="result.csv"'}
        return StreamingResponse(parts, media_type="text/csv", headers=headers)

    def find(self, request: Request) -> Response:
        """Show what an id names, whatever its kind."""
        name = request.query_params.get("id", "").strip()
        if not name:
            raise NothingToShow("Type the id of a rollout, trace, run, policy or dataset.")
        in_home = look_up_in_home(name, home=self._sources.home, folders=False)
        return self._shown(in_home or self._look_up(name))

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

    def file(self, request: Request) -> Response:
        """Return a style sheet or a script."""
        name = request.path_params["name"]
        if name not in FILES:
            return PlainTextResponse("There is no such file.\n", 404)
        own = files("ltrain_ui").joinpath("static", name)
        text = page_asset(name) if name in SHARED else own.read_text("utf-8")
        return Response(text, media_type=FILES[name])

    async def refuse(self, request: Request, error: Exception) -> Response:
        """Show an error that the user can fix."""
        if isinstance(error, NothingToShow):
            status = 404
        else:
            status = 503 if isinstance(error, NoStore | StoreUnreachable) else 400
        return self._page("message.html.j2", status, title="Nothing to show", message=str(error))

    async def absent(self, request: Request, error: Exception) -> Response:
        """Return the page for an address without one."""
        message = f"There is no page {request.url.path}."
        return self._page("message.html.j2", 404, title="No such page", message=message)

    async def fail(self, request: Request, error: Exception) -> Response:
        """Return the page for an unexpected error, of which the terminal has the traceback."""
        message = f"{type(error).__name__}: {error}. The terminal of `ltrain ui` has the details."
        return self._page("message.html.j2", 500, title="Unexpected error", message=message)

    async def ask_to_sign_in(self, request: Request) -> Response:
        """Return the page for a browser without a session."""
        return self._page("sign_in.html.j2", 401, title="Sign in")

    def _look_up(self, name: str) -> RolloutTree | Report:
        home, recipe = self._sources.home, self._sources.recipe
        return self._sources.read(lambda store: look_up_in_store(store, name, home, recipe))

    def _in_home(self, kind: str, name: str, against: str | None = None) -> Report:
        home = self._sources.home
        found = look_up_in_home(f"{kind}:{name}", home=home, against=against, folders=False)
        if found is None:
            raise NothingToShow(f"There is no {kind} '{name}' in {home}.")
        return found

    def _shown(self, shown: RolloutTree | Report, links: Sequence[KeyLink] = ()) -> Response:
        template = template_name(shown)
        return self._page(template, title=shown.title, shown=shown, links=links)

    def _page(self, template: str, status: int = 200, /, **values: Any) -> Response:
        values = {"layout": FRAME, "href": address_of, "links": (), **values}
        text = self._templates.get_template(template).render(values)
        return HTMLResponse(text, status)


def _wave(request: Request) -> WaveReference:
    """Return the wave of an address."""
    place = request.path_params
    return WaveReference(place["run"], request.query_params.get("mode", "train"), place["wave"])


def _templates() -> Environment:
    shared = page_templates()
    own = PackageLoader("ltrain_ui")
    assert shared.loader is not None
    return shared.overlay(loader=ChoiceLoader([own, shared.loader]))


def make_app(sources: Sources, sessions: Sessions, announce: Callable[[], None]) -> ASGIApp:
    """Return the application for browsers.

    Args:
        announce: called when the code of the link was used.
    """
    pages = Pages(sources, sessions, announce)
    handlers = {LtrainError: pages.refuse, 404: pages.absent, 500: pages.fail}
    app = Starlette(routes=pages.routes(), exception_handlers=handlers)
    sign_in = Starlette(routes=[Route("/{path:path}", pages.ask_to_sign_in)])
    return PageGuard(app, sessions, sign_in)


def make_open_app(sources: Sources) -> ASGIApp:
    """Return the pages without sign-in, for this process alone; errors are raised."""
    return Starlette(routes=Pages(sources, Sessions(), lambda: None).routes())
