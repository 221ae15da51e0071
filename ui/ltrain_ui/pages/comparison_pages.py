"""Pages of rollouts side by side: a group, and one task under two versions."""

from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ltrain_collector.errors import BadParameter
from ltrain_transforms.reports import (
    MAX_RUNS,
    GroupReference,
    Kind,
    Progress,
    Reference,
    WaveReference,
    compare,
    latest_changes,
    read_scores,
    run_overlay,
)
from ltrain_transforms.show import Group, align_calls, compare_task, read_group, recipe_of_group
from ltrain_ui.addresses import KeyLink, address_of, compare_address, task_address
from ltrain_ui.breadcrumbs import group_crumbs
from ltrain_ui.listing import parse_number
from ltrain_ui.pages.renderer import Renderer
from ltrain_ui.pages.run_pages import chart_options
from ltrain_ui.sources import Sources


class ComparisonPages:
    """Rollouts of a task, and versions of a policy, side by side."""

    section = "Compare"
    """The section of the navigation."""

    def __init__(self, sources: Sources, renderer: Renderer) -> None:
        self._sources = sources
        self._renderer = renderer

    def routes(self) -> list[Route]:
        """Return the addresses and their functions."""
        return [Route("/groups", self.group), Route("/compare", self.compare)]

    def group(self, request: Request) -> Response:
        """Show the rollouts of a task in a wave side by side."""
        values, sources = request.query_params, self._sources
        wave = parse_number("wave", values.get("wave", ""))
        place = GroupReference(
            values.get("run", ""), values.get("mode", "train"), wave, values.get("task", "")
        )
        recipe, label = recipe_of_group(sources.recipe)
        group = sources.read(lambda store: read_group(store, recipe, label, place))
        waves = task_address(place.run, place.task)
        links = [("This task in all waves", "w", waves)]
        return self._group(
            request, group, group.title, links, section="Runs", crumbs=group_crumbs(place)
        )

    def _group(
        self,
        request: Request,
        group: Group,
        title: str,
        links: Sequence[KeyLink],
        **values: Any,
    ) -> Response:
        place, named = group.reference, request.query_params
        outcomes, group = _by_outcome(group, named)
        pair = group.pair(named.get("first", ""), named.get("second", ""))
        chosen = ("first", "second")
        return self._renderer.page(
            "group.html.j2",
            title=title,
            group=group,
            outcomes=outcomes,
            links=links,
            fields=[(name, text) for name, text in named.items() if name not in chosen],
            pair=dict(zip(chosen, pair, strict=True)) if pair else None,
            alignment=align_calls(*(member.calls for member in pair)) if pair else None,
            run=address_of(Reference(Kind.RUN, place.run)),
            wave=address_of(WaveReference(place.run, place.mode, place.wave)),
            **values,
        )

    def _overlay(self, request: Request, runs: Sequence[str]) -> Response:
        """Show several runs in the same charts."""
        sources, values = self._sources, request.query_params
        by = values.get("by", Progress.WAVE)
        if by not in set(Progress):
            raise BadParameter(f"'by' is one of {', '.join(Progress)} in an address.")
        trust = sources.trusted_senders()
        report = sources.read(
            lambda store: run_overlay(store, sources.home, runs, Progress(by), trust)
        )
        same = [("runs", run) for run in runs]
        links = [
            (f"By {each}", each[0], f"/compare?{urlencode([*same, ('by', each)])}")
            for each in Progress
        ]
        return self._renderer.show(
            report,
            links,
            crumbs=[("Compare", "/compare"), (", ".join(runs), None)],
            chart_options=chart_options(values),
            chart_fields=[*same, ("by", by)],
        )

    def compare(self, request: Request) -> Response:
        """Compare two versions of a policy, or their rollouts of one task side by side."""
        sources, values = self._sources, request.query_params
        if runs := _runs(values):
            return self._overlay(request, runs)
        a, b = (values.get(name, "").strip() for name in ("a", "b"))
        mode, name = values.get("mode") or "val", values.get("name") or "reward"
        fields = (("a", a), ("b", b), ("mode", mode), ("name", name))
        if not a or not b:
            title = "Compare two versions of a policy"
            known = sources.read(lambda store: list(latest_changes(store, MAX_RUNS)))
            return self._renderer.page(
                "compare.html.j2", title=title, fields=fields, found=None, runs=known
            )
        trust, task = sources.trusted_senders(), values.get("task")
        rows = sources.read(lambda store: read_scores(store, a, b, mode, name, trust))
        if task is None:
            found = compare(rows, a, b, mode, name)
            return self._renderer.page(
                "compare.html.j2", title=f"{b} against {a}", fields=fields, found=found, runs=()
            )
        recipe, label = recipe_of_group(sources.recipe)
        group = sources.read(lambda store: compare_task(store, recipe, label, rows, mode, task))
        links = [("All tasks", "u", compare_address(a, b, mode, name))]
        crumbs = [("Compare", "/compare"), (f"{b} against {a}", links[0][2]), (task, None)]
        return self._group(request, group, f"task {task}: {b} against {a}", links, crumbs=crumbs)


def _runs(values: QueryParams) -> list[str]:
    """Return the runs that an address names: `runs` more than once, or once with commas."""
    named = values.getlist("runs")
    return [run for run in (named if len(named) > 1 else ",".join(named).split(",")) if run]


def _by_outcome(
    group: Group, values: QueryParams
) -> tuple[list[tuple[str, int, str | None]], Group]:
    """Return each outcome of a group with its count and the address of its rollouts, None for what
    is shown; and the group with the outcome that an address names.
    """
    chosen = values.get("outcome")
    counts = Counter(member.outcome for member in group.members)
    others = [(name, text) for name, text in values.items() if name != "outcome"]
    every = ("all", len(group.members), f"?{urlencode(others)}" if chosen is not None else None)
    links = [
        (
            name or "not closed",
            count,
            None if name == chosen else f"?{urlencode([*others, ('outcome', name)])}",
        )
        for name, count in sorted(counts.items())
    ]
    shown = group if chosen is None or chosen not in counts else group.with_outcome(chosen)
    return [every, *links] if len(counts) > 1 else [], shown
