"""Tempo: its API of searches by TraceQL and of traces by id; a project is a service's name."""

import os
from collections.abc import Iterator
from typing import Any, ClassVar

from ltrain_collector.sources.servers.address import Address
from ltrain_collector.sources.servers.api import Api
from ltrain_collector.sources.servers.page import Page, Window
from ltrain_collector.sources.servers.slices import TRACES, slices
from ltrain_collector.sources.tempo import TempoTrace

SECOND = 1_000_000_000


class TempoServer:
    """Reads one service."""

    keys: ClassVar[tuple[str, ...]] = ("TEMPO_TOKEN", "TEMPO_USER", "TEMPO_PASSWORD")
    example: ClassVar[str] = "tempo://127.0.0.1:3200/my-agent"

    def __init__(self, address: Address) -> None:
        self._api, self._service = Api(address, "/api", self.keys), address.project
        self._reader = TempoTrace(0)
        token, user, password = map(os.environ.get, self.keys)
        if token:
            self._api.set_header("Authorization", f"Bearer {token}")
        elif user and password:
            self._api.authorize(user, password)

    def projects(self) -> list[str]:
        answer = self._api.get("v2/search/tag/resource.service.name/values")
        return [each["value"] for each in answer.get("tagValues") or ()]

    def pages(self, window: Window, cursor: str = "", read: int = 0) -> Iterator[Page]:
        yield from slices(window, cursor, read, self._traces, self._fill)

    def _traces(self, start: int, end: int) -> tuple[list[dict[str, Any]], bool]:
        name = self._service.replace("\\", "\\\\").replace('"', '\\"')
        answer = self._api.get(
            "search",
            q=f'{{ resource.service.name = "{name}" }}',
            limit=TRACES,
            start=start // SECOND,
            end=-(-end // SECOND),
        )
        found = list(answer.get("traces") or ())
        return found, len(found) < TRACES

    def _fill(self, page: Page, trace: dict[str, Any]) -> None:
        trace_id = trace["traceID"].zfill(32)
        page.add(f"trace {trace_id}", self._read, trace_id)

    def _read(self, trace_id: str) -> Iterator[dict[str, Any]]:
        yield from self._reader.add(self._api.get(f"traces/{trace_id}"))
