from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ltrain_instrument.delivery.spool import Spool
from ltrain_instrument.delivery.telemetry import create_tracer_provider
from ltrain_instrument.errors import BadSetting

if TYPE_CHECKING:
    from tests.instrument.conftest import Sink

GATEWAY = """
import os, signal, sys
from pathlib import Path
from ltrain_instrument.delivery.telemetry import create_tracer_provider
provider = create_tracer_provider("gateway", home=Path(sys.argv[1]), endpoint=sys.argv[2])
provider.get_tracer("ltrain.gateway").start_span("chat fake").end()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_span_is_on_disk_when_it_has_ended(sink: Sink, tmp_path: Path) -> None:
    sink.status = 503
    killed = subprocess.run([sys.executable, "-c", GATEWAY, tmp_path, sink.url], check=False)
    assert killed.returncode == -signal.SIGKILL
    sink.status = 200
    spool = Spool(tmp_path / "services" / "spool", sink.url)
    assert spool.flush(5)
    spool.close()
    (span,) = sink.spans
    assert (span.name, span.scope) == ("chat fake", "ltrain.gateway")
    assert span.resource["service.name"] == "gateway"
    assert len(span.resource["service.instance.id"]) == 36


def test_only_ltrains_own_limit_applies(
    sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "3")
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "5")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    provider = create_tracer_provider("gateway", home=tmp_path, endpoint=sink.url)
    long = {f"key-{number}": "x" * 100_000 for number in range(20)}
    provider.get_tracer("t").start_span("s", attributes=long).end()
    assert provider.force_flush(5000)
    provider.shutdown()
    assert sink.spans[0].attributes == long


def test_spans_of_the_gateway_are_redacted_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LTRAIN_REDACT", "s3cret")
    provider = create_tracer_provider("gateway", home=tmp_path, endpoint="http://127.0.0.1:9")
    messages = '[{"role":"user","parts":[{"type":"text","content":"it is s3cret"}]}]'
    attributes = {"gen_ai.input.messages": messages, "ltrain.prompt_token_ids": "[41,42]"}
    provider.get_tracer("ltrain.gateway").start_span("chat fake", attributes=attributes).end()
    (segment,) = (tmp_path / "services" / "spool").glob("*.otlp")
    content = segment.read_bytes()
    provider.shutdown()
    assert b"it is [redacted]" in content
    assert b"ltrain.redacted" in content
    assert b"s3cret" not in content
    assert b"[41,42]" not in content


def test_an_invalid_pattern_stops_ltrains_own_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LTRAIN_REDACT", "fine\n(")
    with pytest.raises(BadSetting) as raised:
        create_tracer_provider("gateway", home=tmp_path, endpoint="http://127.0.0.1:9")
    assert str(raised.value) == (
        "LTRAIN_REDACT: '(' is not a valid regular expression: "
        "missing ), unterminated subpattern at position 0."
    )


def test_a_failing_disk_is_a_warning_and_never_raised(
    sink: Sink, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "services").mkdir()
    (tmp_path / "services" / "spool").write_text("in the way")
    provider = create_tracer_provider("gateway", home=tmp_path, endpoint=sink.url)
    for _ in range(3):
        provider.get_tracer("t").start_span("s").end()
    provider.shutdown()
    assert caplog.text.count("spans are lost") == 1


def test_shutdown_with_an_unreachable_collector_is_quick_and_keeps_the_spans(
    sink: Sink, tmp_path: Path
) -> None:
    import time

    sink.stop()
    provider = create_tracer_provider("gateway", home=tmp_path, endpoint=sink.url)
    provider.get_tracer("t").start_span("s").end()
    started = time.monotonic()
    provider.shutdown()
    assert time.monotonic() - started < 1
    assert len(os.listdir(tmp_path / "services" / "spool")) == 1
