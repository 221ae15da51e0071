"""Pages of executions: lists, the tree of one, and its trained tokens."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlencode

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from ltrain_collector.errors import BadParameter
from ltrain_instrument.quantity import quantity
from ltrain_transforms.errors import NothingToShow
from ltrain_transforms.reports import Kind, Reference, Sibling, read_siblings
from ltrain_transforms.show import (
    SHADES,
    CallParts,
    Extent,
    RolloutTree,
    call_rows,
    read_group,
    recipe_of_group,
    trained_rows,
    tree_values,
)
from ltrain_ui.addresses import FOLDERS, KeyLink, address_of, tokens_address
from ltrain_ui.breadcrumbs import SHORT, execution_crumbs, group_of
from ltrain_ui.call_spans import read_call_spans, read_faults
from ltrain_ui.listing import FIELDS, ListQuery, neighbours, parse_number, read_page
from ltrain_ui.pages.feedback_pages import PageFeedback, page_feedback
from ltrain_ui.pages.renderer import Renderer
from ltrain_ui.sources import Sources
from ltrain_ui.trees import OpenedTree, TreeAddress, Trees


class ExecutionPages:
    """Pages of what agents did: rollouts, traces, sessions and spans."""

    section = "Rollouts"
    """The section of the navigation."""

    def __init__(self, sources: Sources, renderer: Renderer) -> None:
        self._sources = sources
        self._renderer = renderer
        self._trees = Trees(sources)

    def routes(self) -> list[Route]:
        """Return the addresses and their functions."""
        parts = [
            Route("/calls/rows", self.rows),
            Route("/calls/body", self.body),
            Route("/calls/position", self.position),
            Route("/calls/tokens", self.call_tokens),
            Route("/calls/fault", self.fault),
            Route("/calls/siblings", self.call_in_siblings),
            Route("/calls/spans.json", self.spans),
        ]
        in_store = [
            Route(f"/{FOLDERS[kind]}/{{id:path}}", self._execution(kind))
            for kind in FOLDERS
            if kind in ("rollout", "trace", "session", "span")
        ]
        return [
            Route("/rollouts", self.rollouts),
            Route("/rollouts/{id}/tokens", self.tokens),
            *parts,
            *in_store,
        ]

    def rollouts(self, request: Request) -> Response:
        """List rollouts and traces by a filter."""
        query = ListQuery.parse(request.query_params)
        page = self._sources.read(lambda store: read_page(store, query))
        return self._renderer.page(
            "rollouts.html.j2",
            title="Rollouts and traces",
            query=query,
            page=page,
            section="Feedback" if query.values.get("unrated") else "Rollouts",
        )

    def _execution(self, kind: str) -> Callable[[Request], Response]:
        def execution(request: Request) -> Response:
            """Show a rollout, trace, session or span as a tree of calls."""
            fields = request.query_params
            address = _tree_address(f"{kind}:{request.path_params['id']}", fields)
            opened, query = self._trees.open(address), ListQuery.parse(fields)
            shown = opened.tree
            links = [("List", "u", query.address())]
            if query.values:
                links += self._sources.read(lambda store: neighbours(store, query, shown.rollout))
            if shown.kind == "rollout":
                links.append(("Tokens", "t", tokens_address(shown.rollout)))
            if opened.dataset is not None:
                links.append(_other_judge(request, address))
            feedback = page_feedback(self._sources, query, shown, fields.get("rated", ""))
            siblings = self._siblings(shown)
            if not query.values:
                links += _next_samples(siblings, shown.rollout)
            values = _values(request, address, opened, feedback) | {"siblings": siblings}
            return self._renderer.show(shown, links, crumbs=execution_crumbs(shown), **values)

        return execution

    def _siblings(self, shown: RolloutTree) -> Sequence[Sibling]:
        """Return the rollouts of its group; none for the first calls, which are there at once."""
        group = group_of(shown)
        if group is None or shown.extent is Extent.FIRST:
            return ()
        trust = self._sources.trusted_senders()
        return self._sources.read(partial(read_siblings, group=group, trust=trust))

    def rows(self, request: Request) -> Response:
        """Return a block of rows of calls."""
        shown, attempt, values = self._part(request)
        start = parse_number("at", values.get("at", ""))
        return HTMLResponse(self._renderer.rows(shown, attempt, start))

    def body(self, request: Request) -> Response:
        """Return the body of a call."""
        shown, attempt, values = self._part(request)
        position = _position(shown, attempt, values)
        query = ListQuery.parse_text(values.get("list", ""))
        feedback = page_feedback(self._sources, query, shown)
        parts = _call_parts(_without_call(values))
        return HTMLResponse(self._renderer.body(shown, attempt, position, feedback, parts))

    def call_tokens(self, request: Request) -> Response:
        """Return the tokens of a call as they were trained."""
        call, dataset = self._call(request), request.query_params.get("dataset", "")
        rollout = request.query_params.get("of", "").removeprefix("rollout:")
        rows = call_rows(self._sources.home, dataset, rollout, call["seq"])
        if not rows:
            raise NothingToShow(f"Dataset '{dataset}' has no token of call #{call['seq']}.")
        return self._renderer.page("call_tokens.html.j2", rows=rows, shades=SHADES)

    def call_in_siblings(self, request: Request) -> Response:
        """Return the same call of each rollout of the group."""
        shown, _, _ = self._part(request)
        place, call = group_of(shown), self._call(request)
        if place is None:
            raise NothingToShow(f"{shown.title} has no group.")
        recipe, label = recipe_of_group(self._sources.recipe)
        group = self._sources.read(lambda store: read_group(store, recipe, label, place))
        calls = group.same_call(shown.rollout, call["seq"])
        return self._renderer.page("call_siblings.html.j2", calls=calls)

    def fault(self, request: Request) -> Response:
        """Return the exceptions that the spans of a call recorded."""
        call = self._call(request)
        faults = self._sources.read(lambda store: read_faults(store, call))
        return self._renderer.page("call_fault.html.j2", faults=faults)

    def spans(self, request: Request) -> Response:
        """Return the spans of a call as JSON."""
        call = self._call(request)
        spans = self._sources.read(lambda store: read_call_spans(store, call))
        text = json.dumps(spans, indent=2, ensure_ascii=False, default=str)
        return Response(text, media_type="application/json")

    def _call(self, request: Request) -> dict[str, Any]:
        """Return the call that a request names, a row of `calls`."""
        shown, attempt, values = self._part(request)
        return shown.attempts[attempt - 1].steps[_position(shown, attempt, values)].call

    def position(self, request: Request) -> Response:
        """Return the position of a call in the tree; -1 if it has no such call."""
        shown, attempt, values = self._part(request)
        call = parse_number("call", values.get("call", ""))
        position = shown.attempts[attempt - 1].position(call)
        return PlainTextResponse("-1" if position is None else str(position))

    def _part(self, request: Request) -> tuple[RolloutTree, int, QueryParams]:
        """Return the tree that a request names, the number of an attempt in it, and the query."""
        values = request.query_params
        address = _tree_address(values.get("of", ""), values)
        shown = self._trees.get(values.get("tree", ""), address)
        attempt = parse_number("attempt", values.get("attempt", ""))
        if not 1 <= attempt <= len(shown.attempts):
            raise NothingToShow(f"{shown.title} has {quantity(len(shown.attempts), 'attempt')}.")
        return shown, attempt, values

    def tokens(self, request: Request) -> Response:
        """Show the rows of a rollout as they were trained."""
        rollout, by = request.path_params["id"], request.query_params.get("by")
        rows = trained_rows(self._sources.home, rollout)
        shade = by if by in SHADES else SHADES[0]
        links = [("Rollout", "u", address_of(Reference(Kind.ROLLOUT, rollout)))]
        title = f"trained rows of rollout {rollout}"
        values = {"rollout": rollout, "rows": rows, "by": shade, "shades": SHADES}
        values["crumbs"] = [
            ("Rollouts", "/rollouts"),
            (rollout[:SHORT], links[0][2]),
            ("tokens", None),
        ]
        return self._renderer.page("tokens.html.j2", title=title, links=links, **values)


def _position(shown: RolloutTree, attempt: int, values: Mapping[str, str]) -> int:
    """Return the position in its attempt of the call that a request names."""
    call = parse_number("call", values.get("call", ""))
    position = shown.attempts[attempt - 1].position(call)
    if position is None:
        raise NothingToShow(f"Attempt {attempt} of {shown.title} has no call #{call}.")
    return position


def _call_parts(tree: Mapping[str, str]) -> CallParts:
    """Return the addresses of the calls of a tree from the parameters that name it."""
    return CallParts(f"/calls/rows?{urlencode(tree)}", "dataset" in tree, "group" in tree)


def _without_call(values: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters that name a tree."""
    return {name: text for name, text in values.items() if name not in ("attempt", "call", "at")}


def _tree_address(of: str, values: Mapping[str, str]) -> TreeAddress:
    """Return the tree that an address names."""
    read = values.get("read")
    if read is not None and read not in set(Extent):
        raise BadParameter(f"'read' is one of {', '.join(Extent)} in an address.")
    extent = None if read is None else Extent(read)
    return TreeAddress(of, extent, values.get("by") == "recipe", bool(values.get("call")))


def _next_samples(siblings: Sequence[Sibling], rollout: str) -> list[KeyLink]:
    """Return the links to the samples of the group before and after a rollout."""
    ids = [one.reference.id for one in siblings]
    if rollout not in ids:
        return []
    at = ids.index(rollout)
    before, after = siblings[:at][-1:], siblings[at + 1 :][:1]
    links = [("Sample before", "k", one) for one in before]
    links += [("Next sample", "j", one) for one in after]
    return [(text, key, str(address_of(one.reference))) for text, key, one in links]


def _other_judge(request: Request, address: TreeAddress) -> KeyLink:
    """Return the link from what was trained to what the recipe gives now, or back."""
    without = ("by", "read")
    kept = {name: text for name, text in request.query_params.items() if name not in without}
    if not address.by_recipe:
        return "By the recipe now", "r", f"?{urlencode({**kept, 'by': 'recipe'})}"
    return "As it was trained", "r", f"?{urlencode(kept)}"


def _values(
    request: Request, address: TreeAddress, opened: OpenedTree, feedback: PageFeedback
) -> dict[str, Any]:
    """Return the values of the template of a tree."""
    shown, values = opened.tree, request.query_params
    tree = {"of": f"{shown.kind}:{shown.rollout}", "read": shown.extent, "tree": opened.key}
    tree["list"] = feedback.list
    if group_of(shown) is not None:
        tree["group"] = "yes"
    if shown.extent is Extent.TRAINED and opened.dataset is not None:
        tree["dataset"] = opened.dataset.id
    if address.by_recipe:
        tree["by"] = "recipe"
    wanted = None
    if values.get("call"):
        last = str(len(shown.attempts))
        attempt = parse_number("attempt", values.get("attempt", last))
        wanted = attempt, parse_number("call", values["call"])
    return tree_values(
        wanted=wanted,
        parts=_call_parts(tree),
        form=[(name, text) for name, text in values.items() if name in (*FIELDS, "by")],
        next=f"?{urlencode({**values, 'read': opened.next})}" if opened.next else None,
        next_text="Wait for it",
        has_newer=opened.has_newer and not address.by_recipe,
        feedback=feedback,
    )
