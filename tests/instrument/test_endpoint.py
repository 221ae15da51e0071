"""Whatever stands at the endpoint, the agent ends as it does alone, and no span is lost."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ltrain_instrument.spool import Spool

if TYPE_CHECKING:
    from tests.instrument.conftest import Sink, Start

NAMES = {"done-0", "done-1", "done-2", "done-3", "done-4", "open"}


@pytest.fixture
def silent() -> Iterator[str]:
    """An endpoint that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def _ends(start: Start, **environ: str) -> str:
    """Run an agent; give what it says on stderr beside its own, which is nothing."""
    agent = start("leaving", "return", **environ)
    agent.says("ready")
    began = time.monotonic()
    status, out, err = agent.wait()
    assert time.monotonic() - began < 10  # 2 by contract; busy cores take the rest
    assert (status, out) == (0, "")
    assert err.count("\n") <= 1
    return err


def _arrive_later(sink: Sink, tmp_path: Path) -> None:
    spool = Spool(tmp_path / "home" / "spool", sink.url)
    assert spool.flush(10)
    spool.close()
    assert {span.name for span in sink.spans} == NAMES


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("http://127.0.0.1:9", "Spans wait in "),
        ("http://no-such-host.invalid:4318", "Spans wait in "),
        ("http://host:port", "Set OTEL_EXPORTER_OTLP_ENDPOINT to a collector's URL"),
        ("http://name:word@127.0.0.1:9", "Spans wait in "),
    ],
)
def test_an_endpoint_that_is_not_there(
    start: Start, sink: Sink, tmp_path: Path, endpoint: str, said: str
) -> None:
    err = _ends(start, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint)
    assert err.startswith("ltrain: ")
    assert said in err
    assert str(tmp_path / "home" / "spool") in err
    assert "word" not in err
    _arrive_later(sink, tmp_path)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "Set OTEL_EXPORTER_OTLP_HEADERS"),
        (403, "Set OTEL_EXPORTER_OTLP_HEADERS"),
        (404, "Set OTEL_EXPORTER_OTLP_ENDPOINT"),
        (302, "Set OTEL_EXPORTER_OTLP_ENDPOINT"),
        (500, "The next ltrain process that reaches the collector sends them."),
    ],
)
def test_an_endpoint_that_answers_with_an_error(
    start: Start, sink: Sink, tmp_path: Path, status: int, said: str
) -> None:
    sink.status = status
    err = _ends(start, OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20key")
    assert f"/v1/traces answered {status} told so. " in err
    assert said in err
    assert "Bearer key" not in err
    sink.status = 200
    _arrive_later(sink, tmp_path)


def test_an_endpoint_that_answers_with_a_web_page(
    start: Start, sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (200, "text/html; charset=utf-8", b"<html>Log in</html>")
    monkeypatch.setattr(type(sink), "respond", lambda *_: page)
    err = _ends(start)
    assert "answered 200 a web page" in err
    assert "Set OTEL_EXPORTER_OTLP_ENDPOINT" in err
    monkeypatch.undo()
    _arrive_later(sink, tmp_path)


def test_an_endpoint_that_hangs(start: Start, sink: Sink, tmp_path: Path, silent: str) -> None:
    assert "does not answer" in _ends(start, OTEL_EXPORTER_OTLP_ENDPOINT=silent)
    _arrive_later(sink, tmp_path)


def test_who_comes_next_sends_what_waits_and_its_own(
    start: Start, sink: Sink, tmp_path: Path
) -> None:
    _ends(start, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    sink.delay = 0.2
    assert _ends(start) == ""
    assert Counter(span.name for span in sink.spans) == dict.fromkeys(NAMES, 2)
    assert list((tmp_path / "home" / "spool").glob("*.otlp")) == []


def test_an_address_without_its_scheme_is_understood(start: Start, sink: Sink) -> None:
    assert _ends(start, OTEL_EXPORTER_OTLP_ENDPOINT=f"127.0.0.1:{sink.port}") == ""
    assert {span.name for span in sink.spans} == NAMES


def test_a_child_leaves_the_warning_to_its_parent(start: Start, sink: Sink) -> None:
    sink.stop()
    status, _, err = start("children", "subprocess").wait()
    assert status == 0
    assert err.count("Spans wait in ") == 1


def test_a_full_spool_drops_what_comes_counted_and_said_once(
    start: Start, sink: Sink, tmp_path: Path
) -> None:
    spool = tmp_path / "home" / "spool"
    spool.mkdir(parents=True)
    (spool / "older").write_bytes(bytes(1 << 20))
    sink.stop()
    err = _ends(start, LTRAIN_SPOOL_LIMIT="1")
    assert f"ltrain: spans are lost: {spool} holds the 1 MiB that LTRAIN_SPOOL_LIMIT allows" in err
    assert [path.name for path in spool.iterdir()] == ["older"]


def test_a_limit_that_is_no_number_is_said_and_the_default_holds(start: Start, sink: Sink) -> None:
    err = _ends(start, LTRAIN_SPOOL_LIMIT="much")
    assert "LTRAIN_SPOOL_LIMIT='much': an integer is expected" in err
    assert {span.name for span in sink.spans} == NAMES


def test_a_disabled_sdk_leaves_the_agent_alone(start: Start, sink: Sink) -> None:
    assert _ends(start, OTEL_SDK_DISABLED="true") == ""
    assert sink.spans == []
