"""Phoenix: its REST API of traces, spans and annotations (version 13 and later).

Phoenix keeps no scopes and no attributes of resources. It stores attributes as a tree: those that
OpenInference has as JSON are put together again.
"""

import json
import os
from collections.abc import Iterator
from typing import Any, ClassVar

from ltrain_collector.sources import spans
from ltrain_collector.sources.servers.address import Address
from ltrain_collector.sources.servers.api import Api
from ltrain_collector.sources.servers.page import Page, Window, chunks, iso
from ltrain_collector.sources.spans import Event, Request, Score, SpanRecord, hex_id, nanoseconds

TRACES, SPANS, ANNOTATIONS, IDS = 100, 500, 1000, 200
"""Traces, spans and annotations of an answer, and ids in a query."""
JSON_ATTRIBUTES = (
    "metadata",
    "llm.prompt_template.variables",
    "tool.parameters",
)
"""OpenInference's attributes with JSON that Phoenix keeps as a tree."""
ERROR, UNKNOWN = "ERROR", "UNKNOWN"


KEYS = ("PHOENIX_API_KEY",)


def open_phoenix(address: Address) -> Api:
    """Return the API of a server with the key of the environment, if there is one."""
    api = Api(address, "/v1", KEYS)
    if key := os.environ.get(KEYS[0]):
        api.set_header("Authorization", f"Bearer {key}")
    return api


class PhoenixServer:
    """Reads one project."""

    keys: ClassVar[tuple[str, ...]] = KEYS
    example: ClassVar[str] = "phoenix://127.0.0.1:6006/default"

    def __init__(self, address: Address) -> None:
        self._api, self._project = open_phoenix(address), address.project

    def projects(self) -> list[str]:
        return [each["name"] for each in self._all("projects")]

    def pages(self, window: Window, cursor: str = "", read: int = 0) -> Iterator[Page]:
        left = window.rest(read)
        while True:
            query = {
                "limit": TRACES if left is None else min(TRACES, left),
                "cursor": cursor or None,
                "start_time": iso(window.since),
                "end_time": iso(window.until),
            }
            answer = self._api.page(self._path("traces"), query)
            traces = [trace["trace_id"] for trace in answer["data"]]
            left = None if left is None else left - len(traces)
            cursor = "" if left == 0 else answer["next_cursor"] or ""
            yield self._page(traces, cursor)
            if not cursor:
                return

    def _page(self, traces: list[str], cursor: str) -> Page:
        page = Page(cursor, len(traces))
        owners, sessions = dict[str, str](), set[str]()
        for span in self._all(self._path("spans"), limit=SPANS, trace_id=traces) if traces else ():
            place = span["context"]
            page.add(f"span {place['span_id']}", self._span, span)
            owners[place["span_id"]] = place["trace_id"]
            sessions |= {str(each) for each in [span["attributes"].get("session.id")] if each}
        for kind, ids in (("span", [*owners]), ("trace", traces), ("session", sorted(sessions))):
            for some in chunks(ids, IDS):
                path, query = self._path(f"{kind}_annotations"), {f"{kind}_ids": some}
                for each in self._all(path, limit=ANNOTATIONS, **query):
                    owner = {"trace_id": owners[each["span_id"]]} if kind == "span" else {}
                    page.add(f"annotation {each['id']}", self._annotation, each | owner)
        return page

    def _span(self, span: dict[str, Any]) -> Iterator[Request]:
        failed = span["status_code"] == ERROR
        record = SpanRecord(
            trace_id=hex_id(span["context"]["trace_id"], 32),
            span_id=hex_id(span["context"]["span_id"], 16),
            parent_id=hex_id(span["parent_id"], 16) if span["parent_id"] else "",
            name=span["name"],
            times=(nanoseconds(span["start_time"]), nanoseconds(span["end_time"])),
            attributes=_attributes(span),
            error=(span["status_message"] or "error") if failed else "",
            events=[
                Event(each["name"], nanoseconds(each["timestamp"]), each.get("attributes") or {})
                for each in span["events"] or ()
            ],
        )
        yield spans.request(self._project, record)

    def _annotation(self, annotation: dict[str, Any]) -> Iterator[Request]:
        result = annotation["result"] or {}
        score = Score(
            trace_id=hex_id(annotation["trace_id"], 32) if "trace_id" in annotation else "",
            session=annotation.get("session_id") or "",
            judged=hex_id(annotation["span_id"], 16) if "span_id" in annotation else "",
            name=annotation["name"],
            value=result.get("score"),
            time=nanoseconds(annotation["updated_at"]),
            label=result.get("label") or "",
            note=result.get("explanation") or "",
            author=annotation["annotator_kind"],
            id=annotation["id"],
        )
        yield spans.evaluation(self._project, score)

    def _path(self, what: str) -> str:
        return f"projects/{self._project}/{what}"

    def _all(self, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        """Yield the entries of all pages of a list."""
        cursor = None
        while True:
            answer = self._api.page(path, {"limit": SPANS, "cursor": cursor, **query})
            yield from answer["data"]
            cursor = answer.get("next_cursor")
            if not cursor:
                return


def _attributes(span: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes as OpenInference has them: some are JSON, not a tree."""
    flat = dict(span["attributes"])
    for name in JSON_ATTRIBUTES:
        below = {key: flat.pop(key) for key in list(flat) if key.startswith(f"{name}.")}
        if below:
            flat[name] = json.dumps(_tree(name, below), ensure_ascii=False)
    known = {"openinference.span.kind": span["span_kind"]} if span["span_kind"] != UNKNOWN else {}
    return known | flat


def _tree(name: str, flat: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *path, last = key.removeprefix(f"{name}.").split(".")
        place = tree
        for step in path:
            place = place.setdefault(step, {})
        place[last] = value
    return tree
