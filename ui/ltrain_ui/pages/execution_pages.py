"""Pages of executions: lists, the tree of one, and its trained tokens."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ltrain_transforms.reports import Kind, Reference
from ltrain_transforms.show import SHADES, RolloutTree, trained_rows
from ltrain_ui.addresses import FOLDERS, address_of, tokens_address
from ltrain_ui.listing import ListQuery, neighbours, read_page
from ltrain_ui.pages.feedback_pages import page_feedback
from ltrain_ui.pages.renderer import Renderer
from ltrain_ui.sources import Sources


class ExecutionPages:
    """What agents did: rollouts, traces, sessions and spans."""

    def __init__(self, sources: Sources, renderer: Renderer) -> None:
        self._sources = sources
        self._renderer = renderer

    def routes(self) -> list[Route]:
        """Return the addresses and their functions."""
        in_store = [
            Route(f"/{FOLDERS[kind]}/{{id:path}}", self._execution(kind))
            for kind in FOLDERS
            if kind in ("rollout", "trace", "session", "span")
        ]
        return [
            Route("/rollouts", self.rollouts),
            Route("/rollouts/{id}/tokens", self.tokens),
            *in_store,
        ]

    def rollouts(self, request: Request) -> Response:
        """List rollouts and traces by a filter."""
        query = ListQuery.parse(request.query_params)
        page = self._sources.read(lambda store: read_page(store, query))
        return self._renderer.page(
            "rollouts.html.j2", title="Rollouts and traces", query=query, page=page
        )

    def _execution(self, kind: str) -> Callable[[Request], Response]:
        def execution(request: Request) -> Response:
            """Show a rollout, trace, session or span as a tree of calls."""
            shown = self._sources.look_up(f"{kind}:{request.path_params['id']}")
            query = ListQuery.parse(request.query_params)
            links = [("List", "u", query.address())]
            if query.values and isinstance(shown, RolloutTree):
                unit = shown.rollout
                links += self._sources.read(lambda store: neighbours(store, query, unit))
            if isinstance(shown, RolloutTree) and shown.kind == "rollout":
                links.append(("Tokens", "t", tokens_address(shown.rollout)))
            if not isinstance(shown, RolloutTree):
                return self._renderer.show(shown, links)
            feedback = page_feedback(self._sources, query, shown)
            return self._renderer.show(shown, links, feedback=feedback)

        return execution

    def tokens(self, request: Request) -> Response:
        """Show the rows of a rollout as they were trained."""
        rollout, by = request.path_params["id"], request.query_params.get("by")
        rows = trained_rows(self._sources.home, rollout)
        shade = by if by in SHADES else SHADES[0]
        links = [("Rollout", "u", address_of(Reference(Kind.ROLLOUT, rollout)))]
        title = f"trained rows of rollout {rollout}"
        values = {"rollout": rollout, "rows": rows, "by": shade, "shades": SHADES}
        return self._renderer.page("tokens.html.j2", title=title, links=links, **values)
