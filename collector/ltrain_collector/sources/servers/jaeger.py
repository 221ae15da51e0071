"""Jaeger: the JSON API of its page, by service."""

import os
from collections.abc import Iterator
from typing import Any, ClassVar

from ltrain_collector.sources.jaeger import JaegerTraces
from ltrain_collector.sources.servers.address import Address
from ltrain_collector.sources.servers.api import Api
from ltrain_collector.sources.servers.page import Page, Window
from ltrain_collector.sources.servers.slices import TRACES, slices


class JaegerServer:
    """Reads one service."""

    keys: ClassVar[tuple[str, ...]] = ("JAEGER_TOKEN",)
    example: ClassVar[str] = "jaeger://127.0.0.1:16686/my-agent"

    def __init__(self, address: Address) -> None:
        self._api, self._service = Api(address, "/api", self.keys), address.project
        self._reader = JaegerTraces(0)
        if token := os.environ.get(self.keys[0]):
            self._api.set_header("Authorization", f"Bearer {token}")

    def projects(self) -> list[str]:
        return list(self._api.get("services")["data"] or ())

    def pages(self, window: Window, cursor: str = "", read: int = 0) -> Iterator[Page]:
        yield from slices(window, cursor, read, self._traces, self._fill)

    def _traces(self, start: int, end: int) -> tuple[list[dict[str, Any]], bool]:
        times = {"start": start // 1000, "end": (end - 1) // 1000}
        answer = self._api.get("traces", service=self._service, limit=TRACES, **times)
        found = list(answer["data"] or ())
        return found, len(found) < TRACES

    def _fill(self, page: Page, trace: dict[str, Any]) -> None:
        page.add(f"trace {trace['traceID']}", self._reader.add, trace)
