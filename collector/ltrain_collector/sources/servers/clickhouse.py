"""ClickHouse: the tables of OpenTelemetry's exporter in another database, `…/DATABASE`.

A project is a database with a table `otel_traces`.
"""

import os
from collections.abc import Iterator
from typing import Any, ClassVar
from urllib.parse import urlsplit

import polars as pl

from ltrain_collector.dsn import Server
from ltrain_collector.errors import QueryFailed, SourceFailed, StoreUnreachable
from ltrain_collector.signals import TRACES, otlp_json
from ltrain_collector.sources.servers.address import Address
from ltrain_collector.sources.servers.page import Page, Window, chunks
from ltrain_collector.store import Store, to_rows

TRACES_OF_PAGE, SPANS_OF_REQUEST = 500, 512
"""Traces of a page, and spans of one request."""
TABLE = "otel_traces"
DATABASES = "SELECT database FROM system.tables WHERE name = {name:String} ORDER BY database"
NEWEST = """
SELECT TraceId AS trace, toUnixTimestamp64Nano(min(Timestamp)) AS start
FROM {table}
WHERE toUnixTimestamp64Nano(Timestamp) < {{until:Int64}} AND TraceId != ''
GROUP BY TraceId
HAVING start >= {{since:Int64}} AND (start, TraceId) < ({{before:Int64}}, {{trace:String}})
ORDER BY start DESC, TraceId DESC
LIMIT {{limit:UInt32}}
"""
"""The next traces, from the newest on."""
INVALID_IDS = "its ids are not 32 and 16 hexadecimal digits"
LATEST = (1 << 63) - 1


class ClickHouseServer:
    """Reads the traces of one database."""

    keys: ClassVar[tuple[str, ...]] = ("CLICKHOUSE_USER", "CLICKHOUSE_PASSWORD")
    example: ClassVar[str] = "clickhouse://127.0.0.1:8123/otel"

    def __init__(self, address: Address) -> None:
        parts = urlsplit(address.url)
        secure = parts.scheme == "https"
        user, password = map(os.environ.get, self.keys)
        server = Server(
            host=parts.hostname or "",
            port=parts.port or (8443 if secure else 8123),
            user=user or "default",
            password=password or "",
            secure=secure,
        )
        try:
            self._store = Store.open(server)
        except StoreUnreachable as error:
            raise SourceFailed(str(error)) from error
        self._table = f"`{address.project.replace('`', '')}`.{TABLE}"

    def projects(self) -> list[str]:
        return self._query(DATABASES, {"name": TABLE})["database"].to_list()

    def pages(self, window: Window, cursor: str = "", read: int = 0) -> Iterator[Page]:
        before, _, trace = cursor.partition(" ")
        place: tuple[int, str] = (int(before or LATEST), trace)
        left = window.rest(read)
        while True:
            most = TRACES_OF_PAGE if left is None else min(TRACES_OF_PAGE, left)
            parameters = {
                "since": window.since or 0,
                "until": window.until or LATEST,
                "before": place[0],
                "trace": place[1],
                "limit": most,
            }
            found = self._query(NEWEST.format(table=self._table), parameters)
            left = None if left is None else left - found.height
            done = found.height < most or left == 0
            place = (found["start"][-1], found["trace"][-1]) if found.height else place
            page = Page("" if done else f"{place[0]} {place[1]}", found.height)
            if found.height:
                self._fill(page, found["trace"].to_list())
            yield page
            if done:
                return

    def _fill(self, page: Page, traces: list[str]) -> None:
        [table] = TRACES.tables
        columns = ", ".join(f"`{name}`" for name in table.columns)
        of_traces = f"FROM {self._table} WHERE TraceId IN {{traces:Array(String)}}"
        frame = self._query(
            f"SELECT {columns} {of_traces} AND {table.valid_ids}", {"traces": traces}
        )
        for rows in chunks(list(to_rows(frame)), SPANS_OF_REQUEST):
            request = otlp_json.message_to_json(table.to_request(rows))
            page.records.append((f"{len(rows)} spans", request, ""))
        invalid = f"SELECT SpanId {of_traces} AND NOT ({table.valid_ids})"
        for span in self._query(invalid, {"traces": traces})["SpanId"]:
            page.records.append((f"span '{span}'", None, INVALID_IDS))

    def _query(self, sql: str, parameters: dict[str, Any]) -> pl.DataFrame:
        try:
            return self._store.query(sql, parameters)
        except QueryFailed as error:
            raise SourceFailed(f"{self._store.name} refuses: {error}") from error
