"""Logfire: its query API, SQL on the table `records`; `logfire:///project` is on its own server.

A read token belongs to one project, and names its region. Rows of one query are limited, so that a
slice of time with more of them is halved.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

from ltrain_collector.sources import spans
from ltrain_collector.sources.servers.address import Address
from ltrain_collector.sources.servers.api import Api
from ltrain_collector.sources.servers.page import Page, Window, iso
from ltrain_collector.sources.servers.slices import TRACES, slices
from ltrain_collector.sources.spans import Event, Request, SpanRecord, hex_id, nanoseconds

OWN = "https://logfire-{}.pydantic.dev"
REGION = re.compile(r"pylf_v\d+_([a-z]+)_")
"""The region in a token."""
ROWS = 10_000
"""Rows of an answer."""
AROUND = 24 * 3_600_000_000_000
"""Nanoseconds that a trace may last: spans of it that start later are not read."""
ERROR = "ERROR"
QUERY = f"""
SELECT trace_id, span_id, parent_span_id, span_name, start_timestamp, end_timestamp, attributes,
    otel_status_code, otel_status_message, otel_events, otel_scope_name, service_name
FROM records
WHERE trace_id IN (
    SELECT trace_id FROM records
    WHERE parent_span_id IS NULL AND start_timestamp >= '{{start}}' AND start_timestamp < '{{end}}'
    ORDER BY start_timestamp DESC LIMIT {TRACES}
)
ORDER BY trace_id, start_timestamp
"""

Row = dict[str, Any]


class LogfireServer:
    """Reads the project of the token."""

    keys: ClassVar[tuple[str, ...]] = ("LOGFIRE_READ_TOKEN",)
    example: ClassVar[str] = "logfire:///my-project"

    def __init__(self, address: Address) -> None:
        token = os.environ.get(self.keys[0], "")
        region = REGION.match(token)
        url = address.url or OWN.format(region[1] if region else "us")
        self._api = Api(replace(address, url=url), "", self.keys)
        self._api.set_header("Authorization", token)

    def projects(self) -> list[str]:
        return [self._api.get("v1/read-token-info")["project_name"]]

    def pages(self, window: Window, cursor: str = "", read: int = 0) -> Iterator[Page]:
        yield from slices(window, cursor, read, self._traces, self._fill)

    def _traces(self, start: int, end: int) -> tuple[list[list[Row]], bool]:
        question = {
            "sql": QUERY.format(start=iso(start), end=iso(end)),
            "min_timestamp": iso(start),
            "max_timestamp": iso(end + AROUND),
            "limit": ROWS,
        }
        rows = self._api.post("v2/query", question)["data"]
        traces = defaultdict[str, list[Row]](list)
        for row in rows:
            traces[row["trace_id"]].append(row)
        return list(traces.values()), len(rows) < ROWS and len(traces) < TRACES

    def _fill(self, page: Page, trace: list[Row]) -> None:
        for row in trace:
            page.add(f"span {row['span_id']}", _request, row)


def _request(row: Row) -> Iterator[Request]:
    failed = row["otel_status_code"] == ERROR
    span = SpanRecord(
        trace_id=hex_id(row["trace_id"], 32),
        span_id=hex_id(row["span_id"], 16),
        parent_id=hex_id(row["parent_span_id"], 16) if row["parent_span_id"] else "",
        name=row["span_name"],
        times=(nanoseconds(row["start_timestamp"]), nanoseconds(row["end_timestamp"])),
        attributes=row["attributes"] or {},
        error=(row["otel_status_message"] or "error") if failed else "",
        events=[
            Event(
                each["event_name"],
                nanoseconds(each["event_timestamp"]),
                each.get("attributes") or {},
            )
            for each in row["otel_events"] or ()
        ],
        scope=row["otel_scope_name"] or "",
    )
    yield spans.request(row["service_name"] or "logfire", span)
