"""Pages of queries: SQL, its result as CSV, and the search by an id."""

from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from ltrain_collector.errors import NoStore, QueryFailed, StoreUnreachable
from ltrain_transforms.errors import NothingToShow
from ltrain_transforms.show import look_up_in_home
from ltrain_ui.addresses import address_of, suggestion_address
from ltrain_ui.pages.renderer import Renderer
from ltrain_ui.queries import NAMED, export_csv, run_query
from ltrain_ui.sources import Sources
from ltrain_ui.suggestions import suggestions


class QueryPages:
    """Read-only SQL, and the search by an id."""

    section = "SQL"
    """The section of the navigation."""

    def __init__(self, sources: Sources, renderer: Renderer) -> None:
        self._sources = sources
        self._renderer = renderer

    def routes(self) -> list[Route]:
        """Return the addresses and their functions."""
        return [
            Route("/find", self.find),
            Route("/find/suggestions", self.suggest),
            Route("/sql", self.sql),
            Route("/sql.csv", self.csv),
        ]

    def sql(self, request: Request) -> Response:
        """Run a query, and show the first rows of its result."""
        query, result, error = request.query_params.get("query", "").strip(), None, None
        try:
            if query:
                result = self._sources.read(lambda store: run_query(store, query))
        except QueryFailed as failure:
            error = str(failure)
        values = {"query": query, "result": result, "error": error, "named": NAMED}
        return self._renderer.page("sql.html.j2", 400 if error else 200, title="SQL", **values)

    def csv(self, request: Request) -> Response:
        """Return the result of a query as a CSV file."""
        query = request.query_params.get("query", "")
        parts = self._sources.read(lambda store: export_csv(store, query))
        headers = {"content-disposition": 'attachment; filename="result.csv"'}
        return StreamingResponse(parts, media_type="text/csv", headers=headers)

    def suggest(self, request: Request) -> Response:
        """Return what a part of a name or an id may mean, as JSON."""
        text = request.query_params.get("id", "").strip()
        sources = self._sources
        try:
            found = sources.read(lambda store: suggestions(store, sources.home, text))
        except (NoStore, StoreUnreachable):
            found = suggestions(None, sources.home, text)
        answers = [
            {"kind": each.kind, "text": each.text, "address": suggestion_address(each)}
            for each in found
        ]
        if text:
            search = f"/rollouts?{urlencode({'text': text})}"
            answers.append({"kind": "text", "text": f"calls with “{text}”", "address": search})
        return JSONResponse(answers)

    def find(self, request: Request) -> Response:
        """Show what an id names, whatever its kind."""
        name = request.query_params.get("id", "").strip()
        if not name:
            raise NothingToShow("Type the id of a rollout, trace, run, policy or dataset.")
        in_home = look_up_in_home(name, home=self._sources.home, folders=False)
        if in_home is not None:
            return self._renderer.show(in_home)
        return RedirectResponse(str(address_of(self._sources.find(name))), 303)
