"""OpenTelemetry switched off, pointed elsewhere, misspelt, or set up by the agent itself."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.instrument.conftest import Sink, Start

SPANS = "global a s3cret\nown None\n"


@pytest.mark.parametrize("plain", [False, True], ids=["outside", "configure"])
@pytest.mark.parametrize(
    "environ",
    [
        {"OTEL_SDK_DISABLED": "true"},
        {"OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_SDK_DISABLED": "TRUE", "OTEL_TRACES_EXPORTER": "console"},
    ],
    ids=str,
)
def test_nothing_is_sent_and_nothing_is_said(
    start: Start, sink: Sink, environ: dict[str, str], plain: bool
) -> None:
    assert start("configured", "all", plain=plain, **environ).wait() == (0, "", "")
    assert sink.requests == []


def test_the_console_gets_what_the_collector_would(start: Start, sink: Sink) -> None:
    environ = {"OTEL_TRACES_EXPORTER": "console", "LTRAIN_REDACT": "wor."}
    status, out, err = start("configured", "all", plain=True, **environ).wait()
    assert (status, err, sink.requests) == (0, "", [])
    first, _ = json.JSONDecoder().raw_decode(out)
    assert first["name"] == "[redacted]"
    assert first["attributes"]["ltrain.rollout.id"] == "r7"
    assert first["attributes"]["ltrain.redacted"] is True


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"OTEL_TRACES_EXPORTER": "otlpp"}, "Requested component 'otlpp' not found"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grcp"}, "Unsupported OTLP protocol 'grcp'"),
    ],
    ids=str,
)
def test_a_misspelt_variable_is_one_line(
    start: Start, sink: Sink, environ: dict[str, str], said: str
) -> None:
    status, out, err = start("configured", "all", **environ).wait()
    assert (status, out) == (0, "")
    assert said in err
    assert err.count("\n") == 1
    assert err.startswith("ltrain: no span is recorded, OpenTelemetry cannot be set up: ")


@pytest.mark.parametrize("plain", [False, True], ids=["outside", "configure"])
def test_a_limit_that_is_no_number_is_left_out(start: Start, plain: bool) -> None:
    """The SDK could not be imported with it, and so neither could ltrain's functions."""
    environ = {"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "many"}
    status, out, err = start("imports", "configure", plain=plain, **environ).wait()
    assert (status, out) == (0, "\n")
    assert err == (
        "ltrain: OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT='many' is not an integer and is ignored.\n"
    )


@pytest.mark.parametrize("late", ["early", "late"])
def test_a_provider_set_after_ltrain_is_joined(start: Start, sink: Sink, late: str) -> None:
    """Its exporters get its spans, wherever they are added; the collector gets all."""
    assert start("providers", late).wait() == (0, SPANS, "")
    names = [span.name for span in sink.spans]
    assert sorted(names) == [
        "before",
        "gen_ai.evaluation.result",
        "global",
        "ltrain.process",
        "own",
    ]
    owned = [span for span in sink.spans if span.name in ("global", "own", "ltrain.process")]
    assert {span.attributes["ltrain.rollout.id"] for span in owned} == {"r7"}
    (process,) = sink.named("ltrain.process")
    assert process.attributes["ltrain.rollout.spans"] == 3


def test_a_provider_set_before_ltrain_is_joined(start: Start, sink: Sink) -> None:
    status, out, err = start("providers", "early", "configure", plain=True).wait()
    assert (status, err) == (0, "")
    last = "gen_ai.evaluation.result None\nltrain.process None\n"
    assert out == f"before None\n{SPANS}{last}"
    assert sink.requests == []


@pytest.mark.parametrize("way", ["before", "after"])
def test_redaction_holds_for_the_agents_own_exporters(start: Start, sink: Sink, way: str) -> None:
    args = ("early", "configure") if way == "before" else ("early",)
    environ = {"LTRAIN_REDACT": "s3cret"}
    status, out, err = start("providers", *args, plain=way == "before", **environ).wait()
    assert (status, err) == (0, "")
    assert "global a [redacted]\n" in out
    assert "s3cret" not in out


DECLARED = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

def load_config_file(name):
    return name

def configure_sdk(name):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
    trace.set_tracer_provider(provider)
"""


def test_what_a_file_of_opentelemetrys_sets_up_is_joined(
    start: Start, sink: Sink, tmp_path: Path
) -> None:
    package = tmp_path / "site" / "opentelemetry" / "configuration"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(DECLARED)
    environ = {
        "OTEL_CONFIG_FILE": "otel.yaml",
        "LTRAIN_REDACT": "wor.",
        "PYTHONPATH": f"{tmp_path / 'site'}:{os.environ.get('PYTHONPATH', '')}",
    }
    status, out, err = start("configured", "all", **environ).wait()
    assert (status, err, sink.requests) == (0, "", [])
    first, _ = json.JSONDecoder().raw_decode(out)
    assert first["name"] == "[redacted]"
    assert first["attributes"]["ltrain.rollout.id"] == "r7"


def test_what_waits_on_disk_is_redacted(start: Start, sink: Sink, tmp_path: Path) -> None:
    sink.stop()
    assert start("providers", "late", LTRAIN_REDACT="s3cret").wait()[0] == 0
    waiting = b"".join(path.read_bytes() for path in (tmp_path / "home/spool").glob("*.otlp"))
    assert b"a [redacted]" in waiting
    assert b"s3cret" not in waiting


def test_what_a_model_was_asked_and_said_is_redacted(start: Start, sink: Sink) -> None:
    assert start("client", LTRAIN_REDACT="hello\nsunny").wait() == (0, "", "")
    calls = sink.named("openai.chat")
    assert len(calls) == 3
    assert all(span.attributes["ltrain.redacted"] for span in calls)
    sent = b"".join(body for _, _, body in sink.requests)
    assert b"hello" not in sent
    assert b"sunny" not in sent


def test_log_records_stay_where_values_are_redacted(start: Start) -> None:
    environ = {"LTRAIN_REDACT": "s3cret", "OTEL_LOGS_EXPORTER": "otlp"}
    status, _, err = start("configured", "all", plain=True, **environ).wait()
    assert status == 0
    assert err == (
        "ltrain: OTEL_LOGS_EXPORTER=otlp is treated as none, because LTRAIN_REDACT does not "
        "apply to log records.\n"
    )


def test_a_bad_pattern_is_said_once_and_no_text_leaves(start: Start, sink: Sink) -> None:
    status, _, err = start("providers", "early", LTRAIN_REDACT="(").wait()
    assert status == 0
    (line,) = err.splitlines()
    assert line == (
        "ltrain: LTRAIN_REDACT: '(' is not a valid regular expression: missing ), unterminated "
        "subpattern at position 0. Until it is fixed, no text of any span is sent."
    )
    (process,) = sink.named("ltrain.process")
    assert process.attributes["ltrain.rollout.id"] == "r7"
    sent = b"".join(body for _, _, body in sink.requests)
    assert b"s3cret" not in sent
    assert b"[redacted]" in sent


def test_a_bad_limit_is_said_and_the_default_holds(start: Start, sink: Sink) -> None:
    status, _, err = start("configured", "all", plain=True, LTRAIN_SPAN_LIMIT="3MB").wait()
    assert status == 0
    assert err.startswith("ltrain: LTRAIN_SPAN_LIMIT='3MB': an integer is expected. ")
    assert err.count("\n") == 1
    assert sink.named("work")
