"""OpenTelemetry switched off, sent elsewhere, misconfigured, or set up by the agent itself."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.instrument.conftest import Sink, Start

SPANS = "global a s3cret\nown None\n"


@pytest.mark.parametrize("uninstrumented", [False, True], ids=["outside", "configure"])
@pytest.mark.parametrize(
    "environ",
    [
        {"OTEL_SDK_DISABLED": "true"},
        {"OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_SDK_DISABLED": "TRUE", "OTEL_TRACES_EXPORTER": "console"},
    ],
    ids=str,
)
def test_nothing_is_sent_or_printed(
    start: Start, sink: Sink, environ: dict[str, str], uninstrumented: bool
) -> None:
    assert start("configured", "all", uninstrumented=uninstrumented, **environ).wait() == (
        0,
        "",
        "",
    )
    assert sink.requests == []


def test_the_console_gets_what_the_collector_would_get(start: Start, sink: Sink) -> None:
    environ = {"OTEL_TRACES_EXPORTER": "console", "LTRAIN_REDACT": "wor."}
    status, out, err = start("configured", "all", uninstrumented=True, **environ).wait()
    assert (status, err, sink.requests) == (0, "", [])
    first, _ = json.JSONDecoder().raw_decode(out)
    assert first["name"] == "[redacted]"
    assert first["attributes"]["ltrain.rollout.id"] == "r7"
    assert first["attributes"]["ltrain.redacted"] is True


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"OTEL_TRACES_EXPORTER": "otlpp"}, "Requested component 'otlpp' not found"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grcp"}, "Unsupported OTLP protocol 'grcp'"),
    ],
    ids=str,
)
def test_an_invalid_variable_is_one_warning(
    start: Start, sink: Sink, environ: dict[str, str], message: str
) -> None:
    status, out, err = start("configured", "all", **environ).wait()
    assert (status, out) == (0, "")
    assert message in err
    assert err.count("\n") == 1
    assert err.startswith("ltrain: no span is recorded, OpenTelemetry cannot be set up: ")


@pytest.mark.parametrize("uninstrumented", [False, True], ids=["outside", "configure"])
def test_a_limit_that_is_not_a_number_is_ignored(start: Start, uninstrumented: bool) -> None:
    """With it neither the SDK nor ltrain's functions could be imported."""
    environ = {"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "many"}
    status, out, err = start(
        "imports", "configure", uninstrumented=uninstrumented, **environ
    ).wait()
    assert (status, out) == (0, "\n")
    assert err == (
        "ltrain: OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT='many' is not an integer and is ignored.\n"
    )


@pytest.mark.parametrize("order", ["early", "late"])
def test_a_provider_set_after_ltrain_is_extended(start: Start, sink: Sink, order: str) -> None:
    """Its exporters get its spans, whenever they are added; the collector gets all spans."""
    assert start("providers", order).wait() == (0, SPANS, "")
    names = [span.name for span in sink.spans]
    assert sorted(names) == [
        "before",
        "gen_ai.evaluation.result",
        "global",
        "ltrain.process",
        "own",
    ]
    rollout_spans = [
        span for span in sink.spans if span.name in ("global", "own", "ltrain.process")
    ]
    assert {span.attributes["ltrain.rollout.id"] for span in rollout_spans} == {"r7"}
    (process,) = sink.named("ltrain.process")
    assert process.attributes["ltrain.rollout.spans"] == 3


def test_a_provider_set_before_ltrain_is_extended(start: Start, sink: Sink) -> None:
    status, out, err = start("providers", "early", "configure", uninstrumented=True).wait()
    assert (status, err) == (0, "")
    last = "gen_ai.evaluation.result None\nltrain.process None\n"
    assert out == f"before None\n{SPANS}{last}"
    assert sink.requests == []


@pytest.mark.parametrize("way", ["before", "after"])
def test_redaction_applies_to_the_agents_exporters(start: Start, sink: Sink, way: str) -> None:
    args = ("early", "configure") if way == "before" else ("early",)
    environ = {"LTRAIN_REDACT": "s3cret"}
    status, out, err = start("providers", *args, uninstrumented=way == "before", **environ).wait()
    assert (status, err) == (0, "")
    assert "global a [redacted]\n" in out
    assert "s3cret" not in out


CONFIGURED_BY_FILE = """
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


def test_a_provider_from_a_configuration_file_is_extended(
    start: Start, sink: Sink, tmp_path: Path
) -> None:
    package = tmp_path / "site" / "opentelemetry" / "configuration"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(CONFIGURED_BY_FILE)
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


def test_spans_on_disk_are_redacted(start: Start, sink: Sink, tmp_path: Path) -> None:
    sink.stop()
    assert start("providers", "late", LTRAIN_REDACT="s3cret").wait()[0] == 0
    waiting = b"".join(path.read_bytes() for path in (tmp_path / "home/spool").glob("*.otlp"))
    assert b"a [redacted]" in waiting
    assert b"s3cret" not in waiting


def test_prompts_and_responses_are_redacted(start: Start, sink: Sink) -> None:
    assert start("client", LTRAIN_REDACT="hello\nsunny").wait() == (0, "", "")
    calls = sink.named("openai.chat")
    assert len(calls) == 3
    assert all(span.attributes["ltrain.redacted"] for span in calls)
    sent = b"".join(body for _, _, body in sink.requests)
    assert b"hello" not in sent
    assert b"sunny" not in sent


def test_log_records_are_not_exported_with_redaction(start: Start) -> None:
    environ = {"LTRAIN_REDACT": "s3cret", "OTEL_LOGS_EXPORTER": "otlp"}
    status, _, err = start("configured", "all", uninstrumented=True, **environ).wait()
    assert status == 0
    assert err == (
        "ltrain: OTEL_LOGS_EXPORTER=otlp is treated as none, because LTRAIN_REDACT does not "
        "apply to log records.\n"
    )


def test_an_invalid_pattern_is_one_warning_and_no_text_is_sent(start: Start, sink: Sink) -> None:
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


def test_an_invalid_limit_is_one_warning_and_the_default_is_used(start: Start, sink: Sink) -> None:
    status, _, err = start("configured", "all", uninstrumented=True, LTRAIN_SPAN_LIMIT="3MB").wait()
    assert status == 0
    assert err.startswith("ltrain: LTRAIN_SPAN_LIMIT='3MB': an integer is expected. ")
    assert err.count("\n") == 1
    assert sink.named("work")
