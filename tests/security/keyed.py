"""A server whose clients have keys."""

import time
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests import http_requests
from tests.up import Up, start_up

from ltrain_collector.access import Keys, Role


class Keyed:
    """A server, with requests by key."""

    def __init__(self, up: Up, keys: dict[str, str]) -> None:
        self.up, self.keys = up, keys

    def ask(self, key: str, sql: str, **fields: str) -> http_requests.Answer:
        headers = {"X-ClickHouse-Key": self.keys[key]}
        url = "/?" + urlencode(fields)
        return http_requests.ask(self.up.sql, "POST", url, sql.encode(), headers, timeout=120)

    def begin(self, key: str, sql: str) -> HTTPConnection:
        """Send a query without waiting for its answer."""
        connection = HTTPConnection("127.0.0.1", self.up.sql, timeout=120)
        connection.request("POST", "/", sql.encode(), {"X-ClickHouse-Key": self.keys[key]})
        return connection

    def running(self, text: str) -> int:
        """Return the number of running queries of all keys that contain `text`."""
        sql = "SELECT count() FROM system.processes WHERE query LIKE {text:String}"
        return int(self.ask("admin", sql, param_text=f"%{text}%").text)

    def reaches(self, text: str, wanted: int) -> None:
        """Wait until `count` queries with `text` run."""
        until = time.monotonic() + 60
        while (found := self.running(text)) != wanted:
            assert time.monotonic() < until, found
            time.sleep(0.1)

    def refused(self) -> dict[str, int]:
        """Return the count of refused queries by reason, from `/metrics`."""
        headers = {"Authorization": f"Bearer {self.keys['admin']}"}
        lines = http_requests.ask(self.up.otlp, "GET", "/metrics", None, headers).text.splitlines()
        name = 'ltrain_collector_queries_refused_total{reason="'
        found = (line.removeprefix(name).split('"} ') for line in lines if line.startswith(name))
        return {reason: int(float(count)) for reason, count in found}


def start(where: Path) -> Keyed:
    """Start a server on an empty folder with keys of all roles, and send one span."""
    keys = Keys(where)
    made = {
        "admin": keys.make_key(Role.ADMIN)[0],
        "one": keys.make_key(Role.QUERY)[0],
        "two": keys.make_key(Role.QUERY)[0],
        "three": keys.make_key(Role.QUERY)[0],
        "ingest": keys.make_key(Role.INGEST)[0],
    }
    opened = Keyed(start_up(where), made)
    headers = {"Authorization": f"Bearer {made['ingest']}"}
    assert http_requests.post(opened.up.otlp, spans(1), **headers).status == 200
    return opened


def spans(number: int) -> bytes:
    """Return a request of one span."""
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add(name=f"n{number}")
    span.trace_id, span.span_id = number.to_bytes(16, "big"), number.to_bytes(8, "big")
    span.start_time_unix_nano = 1_790_000_000_000_000_000
    return bytes(request.SerializeToString())
