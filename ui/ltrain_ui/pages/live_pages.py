"""The page of spans as they arrive, and its stream of server-sent events."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ltrain_collector.admin import Arrival
from ltrain_instrument.machine import visible
from ltrain_transforms.reports import Kind, Reference, read_open_rollouts
from ltrain_ui.addresses import address_of
from ltrain_ui.live_spans import Cursor, LiveSpans, Update
from ltrain_ui.pages.renderer import Renderer
from ltrain_ui.sources import Sources

MAX_ROWS = 200
"""Spans of one event, and rows that a page keeps."""
FILTERS = ("service", "run")
"""Parameters that select spans."""


class LivePages:
    """The page of spans as they arrive."""

    section = "Live"
    """The section of the navigation."""

    def __init__(self, sources: Sources, renderer: Renderer) -> None:
        self._renderer, self._sources = renderer, sources
        self._spans = LiveSpans(sources)
        sources.at_stop(self._spans.stop)

    def routes(self) -> list[Route]:
        """Return the addresses and their functions."""
        return [
            Route("/live", self.live),
            Route("/live/rollouts", self.rollouts),
            Route("/live/events", self.events),
        ]

    async def live(self, request: Request) -> Response:
        """Show the page, which follows the stream."""
        values = {name: request.query_params.get(name, "").strip() for name in FILTERS}
        return self._renderer.page("live.html.j2", title="Live", values=values, max_rows=MAX_ROWS)

    def rollouts(self, request: Request) -> Response:
        """Return the rollouts that run now, for the page."""
        trust = self._sources.trusted_senders()
        found = self._sources.read(lambda store: read_open_rollouts(store, trust))
        return self._renderer.page("live_rollouts.html.j2", found=found)

    async def events(self, request: Request) -> Response:
        """Stream the spans that a filter selects."""
        values = request.query_params
        filters = {name: value for name in FILTERS if (value := values.get(name, "").strip())}
        # a page that was hidden connects anew, without the header
        last = request.headers.get("last-event-id") or values.get("after", "")
        events = self._events(Cursor.parse(last), filters, request.state.is_admitted)
        return StreamingResponse(events, media_type="text/event-stream")

    async def _events(
        self, cursor: Cursor | None, filters: dict[str, str], is_admitted: Callable[[], bool]
    ) -> AsyncIterator[str]:
        lost = cursor is not None and cursor.process != self._spans.process
        async with aclosing(self._spans.listen(cursor)) as updates:
            async for update in updates:
                if not is_admitted():  # the key was revoked, or the session ended
                    return
                yield self._event(update, filters, lost)
                lost = False

    def _event(self, update: Update, filters: dict[str, str], lost: bool) -> str:
        """Return an event, with the number of its last span."""
        chosen = [
            span
            for _, span in update.spans
            if all(getattr(span, name) == value for name, value in filters.items())
        ]
        content = {
            "spans": [_row(span) for span in chosen[-MAX_ROWS:]],
            "skipped": update.skipped + max(len(chosen) - MAX_ROWS, 0),
            "failure": update.failure,
            "lost": lost,
        }
        number = f"id: {Cursor(self._spans.process, update.spans[-1][0])}\n" if update.spans else ""
        return f"{number}data: {json.dumps(content)}\n\n"


def _row(span: Arrival) -> dict[str, Any]:
    """Return a span as the page shows it."""
    kind, unit = (Kind.ROLLOUT, span.rollout) if span.rollout else (Kind.TRACE, span.trace)
    started = datetime.fromtimestamp(span.started / 1e9, UTC)
    cells = (
        f"{started:%H:%M:%S}.{started.microsecond // 1000:03}",
        *(visible(text) for text in (span.service, span.name, span.actor)),
        "error" if span.status == "Error" else "ok",
        f"{span.seconds:.3f}",
        visible(span.run),
    )
    address = address_of(Reference(kind, unit))
    return {"key": f"{span.trace}-{span.span}", "cells": cells, "href": address, "id": unit[:12]}
