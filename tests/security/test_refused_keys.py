"""A service sends its spans with ltrain's key or keeps them: none is sent without a sender."""

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ltrain_instrument.delivery import (
    Authorization,
    SendStatus,
    Spool,
    otlp_client,
    send_leftover_spans,
)
from ltrain_instrument.delivery.segment import Segment
from ltrain_instrument.errors import BadSetting

OWN, SERVICE = "Bearer environment", "Bearer service"


class Collector:
    """Accepts requests with one of its keys or without any, as `ltrain up` without keys."""

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.taken: list[str | None] = []
        """The keys of the accepted requests, in order."""
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                key = self.headers["Authorization"]
                known = key is None or key in collector.keys
                if known:
                    collector.taken.append(key)
                self.send_response(200 if known else 401)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    for name in ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"):
        monkeypatch.delenv(name, raising=False)
    collector = Collector()
    yield collector
    collector.server.shutdown()
    collector.server.server_close()


def service(folder: Path, url: str) -> Spool:
    return Spool(folder, url, authorization=Authorization(lambda: SERVICE, fallback=True))


@pytest.mark.parametrize("headers", ["", "tenant=7"])
def test_spans_whose_key_is_refused_wait_for_it(
    collector: Collector,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    headers: str,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", headers)
    spool = service(tmp_path, collector.url)
    spool.append(b"first")
    assert not spool.flush(1)
    assert collector.taken == []
    assert "Spans wait in" in caplog.text and "Set OTEL_EXPORTER_OTLP_HEADERS" in caplog.text
    collector.keys = {SERVICE}
    assert spool.flush(60)
    spool.append(b"second")
    assert spool.flush(60)
    spool.close()
    assert collector.taken == [SERVICE, SERVICE]


def test_the_environments_key_is_sent_instead_for_a_while(
    collector: Collector,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20environment")
    monkeypatch.setattr(otlp_client, "FALLBACK_SECONDS", 0.5)
    collector.keys = {OWN}
    spool = service(tmp_path, collector.url)
    spool.append(b"first")
    assert spool.flush(60)
    assert collector.taken == [OWN]
    assert "401" in caplog.text and "Spans are sent with the key of OTEL_EXPORTER" in caplog.text
    collector.keys = {OWN, SERVICE}
    deadline = time.monotonic() + 60
    while SERVICE not in collector.taken and time.monotonic() < deadline:
        spool.append(b"later")
        assert spool.flush(60)
    spool.close()
    assert collector.taken[-1] == SERVICE


def test_what_an_agent_left_is_never_sent_with_the_key_of_its_runner(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20environment")
    collector.keys = {OWN}
    left = Segment.create(tmp_path)
    left.append(b"forged")
    left.release()
    agents = Authorization(lambda: "Bearer expired")
    result = send_leftover_spans(tmp_path, collector.url, timeout=2, authorization=agents)
    assert result.status is SendStatus.RETRY
    assert collector.taken == []
    assert left.path.exists()


def test_spans_wait_for_a_key_that_cannot_be_made(collector: Collector, tmp_path: Path) -> None:
    collector.keys = {SERVICE}
    damaged = [True]

    def header() -> str:
        if damaged:
            raise BadSetting("The store's secret is too short.")
        return SERVICE

    authorization = Authorization(header, fallback=True)
    spool = Spool(tmp_path, collector.url, authorization=authorization)
    spool.append(b"first")
    assert not spool.flush(1)
    damaged.clear()
    assert spool.flush(60)
    spool.close()
    assert collector.taken == [SERVICE]
