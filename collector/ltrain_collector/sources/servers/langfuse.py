"""Langfuse: its public API of observations and scores.

Version 4 has lists with cursors, and no list of traces: the trace of several root observations is
made of them. Earlier servers have pages by number, and list traces for their sessions. The keys
belong to one project.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ltrain_collector.errors import NotThere
from ltrain_collector.sources.langfuse import LangfuseExport
from ltrain_collector.sources.servers.address import Address
from ltrain_collector.sources.servers.api import Api
from ltrain_collector.sources.servers.page import ENTRIES, Page, Window, iso
from ltrain_collector.sources.spans import nanoseconds


@dataclass(frozen=True, slots=True)
class _List:
    """A list of the API."""

    path: str
    begin: str
    """The name of the query's first time,"""
    end: str
    """and of its last."""
    fields: str | None = None


NEW = (
    _List("v2/observations", "fromStartTime", "toStartTime", "basic,io,model,usage"),
    _List("v3/scores", "fromTimestamp", "toTimestamp", "details,subject"),
)
OLD = (
    _List("traces", "fromTimestamp", "toTimestamp"),
    _List("observations", "fromStartTime", "toStartTime"),
    _List("scores", "fromTimestamp", "toTimestamp"),
)


@dataclass(slots=True)
class _Trace:
    """A trace, as its root observations tell of it."""

    observations: int = 0
    times: tuple[int, int] = (0, 0)
    fields: dict[str, Any] = field(default_factory=dict)

    def add(self, own: dict[str, Any]) -> None:
        """Add a root observation."""
        begin = nanoseconds(own["startTime"])
        end = nanoseconds(own.get("endTime") or own["startTime"])
        first, last = self.times if self.observations else (begin, end)
        self.observations, self.times = self.observations + 1, (min(first, begin), max(last, end))
        named = {"id": own["traceId"], "name": own.get("traceName")}
        self.fields = named | {name: own.get(name) for name in ("sessionId", "userId")}

    @property
    def record(self) -> dict[str, Any]:
        """The trace in the form of the older API."""
        begin, end = self.times
        return {**self.fields, "timestamp": begin, "latency": (end - begin) / 1e9}


KEYS = ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY")


def open_langfuse(address: Address) -> Api:
    """Return the API of a server with the keys of the environment."""
    api = Api(address, "/api/public", KEYS)
    api.authorize(*(os.environ.get(key, "") for key in KEYS))
    return api


class LangfuseServer:
    """Reads the project of the keys."""

    keys: ClassVar[tuple[str, ...]] = KEYS
    example: ClassVar[str] = "langfuse://cloud.langfuse.com/my-project"

    def __init__(self, address: Address) -> None:
        self._api = open_langfuse(address)
        self._reader = LangfuseExport(0)

    def projects(self) -> list[str]:
        return [each["name"] for each in self._api.get("projects")["data"]]

    def pages(self, window: Window, cursor: str = "", read: int = 0) -> Iterator[Page]:
        lists = self._lists()
        if window.limit is not None:
            window = self._newest(window, lists)
        traces = dict[str, _Trace]()
        number, _, place = cursor.partition(" ")
        for index in range(int(number or 0), len(lists)):
            while True:
                entries, place = self._read(lists[index], window, place)
                following = f"{index} {place}" if place else f"{index + 1} "
                done = not place and index + 1 == len(lists)
                page = Page("" if done else following, _count_roots(entries, lists))
                for entry in entries:
                    page.add(f"{lists[index].path} {entry['id']}", self._reader.add, entry)
                    if entry.get("isRootObservation"):
                        traces.setdefault(entry["traceId"], _Trace()).add(entry)
                if not place:
                    for trace in traces.values():
                        if trace.observations > 1:
                            page.add(f"trace {trace.fields['id']}", self._reader.add, trace.record)
                    traces.clear()
                yield page
                if not place:
                    break

    def _lists(self) -> tuple[_List, ...]:
        """Return the lists that the server's version has."""
        try:
            self._api.get(NEW[0].path, limit=1)
        except NotThere:
            return OLD
        return NEW

    def _newest(self, window: Window, lists: tuple[_List, ...]) -> Window:
        """Return the part of a window with so many traces as its limit."""
        roots = {"isRootObservation": "true"} if lists is NEW else {}
        place, left, begin = "", window.limit or 0, window.since
        while left > 0:
            entries, place = self._read(lists[0], window, place, **roots)
            for entry in entries[:left]:
                begin = nanoseconds(entry.get("startTime") or entry["timestamp"])
            left -= len(entries)
            if not place:
                return window if left > 0 else replace(window, since=begin)
        return replace(window, since=begin)

    def _read(
        self, one: _List, window: Window, place: str, **query: Any
    ) -> tuple[list[dict[str, Any]], str]:
        """Return the entries at a place of a list, and the next place; '' at the end."""
        by_number = one in OLD
        where = {"page": place or 1} if by_number else {"cursor": place or None}
        times = {one.begin: iso(window.since), one.end: iso(window.until)}
        values = {"limit": ENTRIES, "fields": one.fields, **where, **times, **query}
        answer = self._api.page(one.path, values)
        meta = answer["meta"]
        if not by_number:
            return answer["data"], meta.get("cursor") or ""
        more = meta["page"] < meta["totalPages"]
        return answer["data"], str(meta["page"] + 1) if more else ""


def _count_roots(entries: list[dict[str, Any]], lists: tuple[_List, ...]) -> int:
    """Return how many traces begin among entries."""
    if lists is OLD:
        return sum("traceId" not in entry and "timestamp" in entry for entry in entries)
    return sum(bool(entry.get("isRootObservation")) for entry in entries)
