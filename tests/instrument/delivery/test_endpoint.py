"""Whatever the endpoint is, the agent ends as without ltrain, and no span is lost."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ltrain_instrument.delivery.spool import Spool

if TYPE_CHECKING:
    from tests.instrument.conftest import Sink, Start

NAMES = {"done-0", "done-1", "done-2", "done-3", "done-4", "open"}


@pytest.fixture
def silent() -> Iterator[str]:
    """An endpoint that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def _run_agent(start: Start, **environ: str) -> str:
    """Run an agent that succeeds, and return its stderr of at most one line."""
    agent = start("leaving", "return", **environ)
    agent.expect_line("ready")
    started = time.monotonic()
    status, out, err = agent.wait()
    assert time.monotonic() - started < 10  # the contract says 2 seconds; busy cores take longer
    assert (status, out) == (0, "")
    assert err.count("\n") <= 1
    return err


def _assert_sent_later(sink: Sink, tmp_path: Path) -> None:
    spool = Spool(tmp_path / "home" / "spool", sink.url)
    assert spool.flush(10)
    spool.close()
    assert {span.name for span in sink.spans} == NAMES


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ("http://127.0.0.1:9", "Spans wait in "),
        ("http://no-such-host.invalid:4318", "Spans wait in "),
        ("http://host:port", "Set OTEL_EXPORTER_OTLP_ENDPOINT to a collector's URL"),
        ("http://name:word@127.0.0.1:9", "Spans wait in "),
    ],
)
def test_an_unreachable_endpoint(
    start: Start, sink: Sink, tmp_path: Path, endpoint: str, message: str
) -> None:
    err = _run_agent(start, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint)
    assert err.startswith("ltrain: ")
    assert message in err
    assert str(tmp_path / "home" / "spool") in err
    assert "word" not in err
    _assert_sent_later(sink, tmp_path)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "Set OTEL_EXPORTER_OTLP_HEADERS"),
        (403, "Set OTEL_EXPORTER_OTLP_HEADERS"),
        (404, "Set OTEL_EXPORTER_OTLP_ENDPOINT"),
        (302, "Set OTEL_EXPORTER_OTLP_ENDPOINT"),
        (500, "The next ltrain process that reaches the collector sends them."),
    ],
)
def test_an_endpoint_that_answers_with_an_error(
    start: Start, sink: Sink, tmp_path: Path, status: int, message: str
) -> None:
    sink.status = status
    err = _run_agent(start, OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20key")
    assert f"/v1/traces answered {status} Rejected by the test. " in err
    assert message in err
    assert "Bearer key" not in err
    sink.status = 200
    _assert_sent_later(sink, tmp_path)


def test_an_endpoint_that_answers_with_a_web_page(
    start: Start, sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (200, "text/html; charset=utf-8", b"<html>Log in</html>")
    monkeypatch.setattr(type(sink), "respond", lambda *_: page)
    err = _run_agent(start)
    assert "answered 200 a web page" in err
    assert "Set OTEL_EXPORTER_OTLP_ENDPOINT" in err
    monkeypatch.undo()
    _assert_sent_later(sink, tmp_path)


def test_an_endpoint_that_hangs(start: Start, sink: Sink, tmp_path: Path, silent: str) -> None:
    assert "does not answer" in _run_agent(start, OTEL_EXPORTER_OTLP_ENDPOINT=silent)
    _assert_sent_later(sink, tmp_path)


def test_the_next_process_sends_waiting_spans_and_its_own(
    start: Start, sink: Sink, tmp_path: Path
) -> None:
    _run_agent(start, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    sink.delay = 0.2
    assert _run_agent(start) == ""
    assert Counter(span.name for span in sink.spans) == dict.fromkeys(NAMES, 2)
    assert list((tmp_path / "home" / "spool").glob("*.otlp")) == []


def test_an_endpoint_without_a_scheme_works(start: Start, sink: Sink) -> None:
    assert _run_agent(start, OTEL_EXPORTER_OTLP_ENDPOINT=f"127.0.0.1:{sink.port}") == ""
    assert {span.name for span in sink.spans} == NAMES


def test_a_child_leaves_the_warning_to_its_parent(start: Start, sink: Sink) -> None:
    sink.stop()
    status, _, err = start("children", "subprocess").wait()
    assert status == 0
    assert err.count("Spans wait in ") == 1


def test_a_full_spool_drops_new_spans_with_one_warning(
    start: Start, sink: Sink, tmp_path: Path
) -> None:
    spool = tmp_path / "home" / "spool"
    spool.mkdir(parents=True)
    (spool / "older").write_bytes(bytes(1 << 20))
    sink.stop()
    err = _run_agent(start, LTRAIN_SPOOL_LIMIT="1")
    assert f"ltrain: spans are lost: {spool} holds the 1 MiB that LTRAIN_SPOOL_LIMIT allows" in err
    assert [path.name for path in spool.iterdir()] == ["older"]


def test_an_invalid_limit_is_one_warning_and_the_default_is_used(start: Start, sink: Sink) -> None:
    err = _run_agent(start, LTRAIN_SPOOL_LIMIT="much")
    assert "LTRAIN_SPOOL_LIMIT='much': an integer is expected" in err
    assert {span.name for span in sink.spans} == NAMES


def test_a_disabled_sdk_changes_nothing(start: Start, sink: Sink) -> None:
    assert _run_agent(start, OTEL_SDK_DISABLED="true") == ""
    assert sink.spans == []
