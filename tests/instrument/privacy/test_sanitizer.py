"""Spans as exporters get them: redacted, encodable and limited in size."""

from __future__ import annotations

import json
import math
import re
import sys
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from tests.instrument.conftest import decode

from ltrain_instrument.privacy.redaction import Redaction
from ltrain_instrument.privacy.sanitizer import Sanitizer, fit_values

MIB = 1 << 20


class Stage:
    """A provider with the sanitizer before an exporter."""

    def __init__(self, *patterns: str, limit: int = 3 * MIB) -> None:
        redaction = Redaction([re.compile(each) for each in patterns]) if patterns else None
        self.sanitizer = Sanitizer(redaction, limit)
        self.exported = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(self.sanitizer)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exported))

    def span(self, attributes: dict[str, Any], scope: str = "agent") -> dict[str, Any]:
        self.provider.get_tracer(scope).start_span("chat", attributes=attributes).end()
        return dict(self.last.attributes or {})

    @property
    def last(self) -> ReadableSpan:
        return self.exported.get_finished_spans()[-1]


def messages(content: str) -> str:
    return json.dumps([{"role": "user", "parts": [{"type": "text", "content": content}]}])


def test_a_redacted_call_loses_text_and_tokens_and_is_marked() -> None:
    stage = Stage(r"\d{4}", "(?i)alice")
    raw = {"choices": [{"text": "1234", "logprobs": {"tokens": ["12", "34"]}, "token_ids": [1, 2]}]}
    assert stage.span(
        {
            "ltrain.rollout.id": "r1234",
            "gen_ai.operation.name": "chat",
            "gen_ai.input.messages": messages("I am Alice"),
            "gen_ai.output.messages": messages("1234"),
            "gen_ai.usage.input_tokens": 1234,
            "gen_ai.request.logprobs": True,
            "output.value": json.dumps(raw),
            "ltrain.prompt_token_ids": "[5,6]",
            "ltrain.response_token_ids": "[1,2]",
            "ltrain.response_logprobs": "AAAA",
            "ltrain.prompt_token_count": 2,
        }
    ) == {
        "ltrain.rollout.id": "r1234",
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": (
            '[{"role":"user","parts":[{"type":"text","content":"I am [redacted]"}]}]'
        ),
        "gen_ai.output.messages": (
            '[{"role":"user","parts":[{"type":"text","content":"[redacted]"}]}]'
        ),
        "gen_ai.usage.input_tokens": 1234,
        "gen_ai.request.logprobs": True,
        "output.value": '{"choices":[{"text":"[redacted]"}]}',
        "ltrain.prompt_token_count": 2,
        "ltrain.redacted": True,
    }


def test_a_call_without_a_match_is_unchanged() -> None:
    attributes = {
        "gen_ai.input.messages": messages("hello"),
        "gen_ai.output.messages": messages("1"),
        "ltrain.prompt_token_ids": "[5,6]",
    }
    assert Stage(r"\d{4}").span(attributes) == attributes


def test_token_ids_without_their_texts_are_removed() -> None:
    attributes = {"gen_ai.response.id": "r", "ltrain.prompt_token_ids": "[5,6]"}
    assert Stage("x").span(attributes) == {"gen_ai.response.id": "r", "ltrain.redacted": True}
    assert Stage().span(attributes) == attributes


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("caf\\u00e9", "caf\\u00e9"),
        ('{"a": "caf\\u00e9"}', '{"a":"[redacted]"}'),
        ('{"a": "{\\"b\\": \\"caf\\u00e9\\"}"}', '{"a":"{\\"b\\":\\"[redacted]\\"}"}'),
        ('{"café": 77}', '{"[redacted]":"[redacted]"}'),
        ('{"key": "x"}', "{[redacted]}"),
        ("{café", "{[redacted]"),
        (["café", 5], ("[redacted]", 5)),
        ({"a": {"b": "café"}}, {"a": {"b": "[redacted]"}}),
        ("café".encode(), "[redacted]"),
    ],
    ids=str,
)
def test_patterns_apply_to_text_inside_json(value: Any, expected: Any) -> None:
    exported = Stage("café", "77", '"key": ?"x"').span({"v": value})["v"]
    if isinstance(exported, dict | tuple):
        exported = json.loads(json.dumps(exported))
        expected = json.loads(json.dumps(expected))
    assert exported == expected


def test_events_status_and_name_are_redacted_too() -> None:
    stage = Stage("alice")
    span = stage.provider.get_tracer("agent").start_span("tool alice")
    span.add_event("exception", {"exception.message": "no alice", "n": 1}, timestamp=7)
    span.set_status(StatusCode.ERROR, "alice failed")
    span.end()
    last = stage.last
    assert (last.name, last.status.description) == ("tool [redacted]", "[redacted] failed")
    (event,) = last.events
    attributes = {"exception.message": "no [redacted]", "n": 1}
    assert (event.name, dict(event.attributes or {}), event.timestamp) == (
        "exception",
        attributes,
        7,
    )
    assert last.attributes == {"ltrain.redacted": True}


def test_with_an_invalid_pattern_no_text_is_sent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LTRAIN_REDACT", "(")
    stage = Stage()
    stage.sanitizer.redaction = Sanitizer.for_agent().redaction
    assert caplog.text.count("is not a valid regular expression") == 1
    assert "no text of any span is sent" in caplog.text
    attributes = {
        "input.value": "hello",
        "openinference.span.kind": "LLM",
        "ltrain.run.id": "a",
        "n": 1,
    }
    assert stage.span(attributes) == {
        "input.value": "[redacted]",
        "openinference.span.kind": "LLM",
        "ltrain.run.id": "a",
        "n": 1,
        "ltrain.redacted": True,
    }


def test_keys_in_urls_are_never_sent() -> None:
    exported = Stage().span(
        {
            "url.full": "https://me:pass@host:1/v1?key=AIza1&page=2&X-Goog-Signature=ab",
            "http.url": "http://host/v1/models",
            "url.query": "api_key=k&q=token",
            "http.request.header.authorization": ("Bearer k",),
            "http.request.header.x-api-key": "k",
            "http.request.header.accept": "text/html",
        }
    )
    mark = "[redacted]"
    assert exported == {
        "url.full": f"https://{mark}@host:1/v1?key={mark}&page=2&X-Goog-Signature={mark}",
        "http.url": "http://host/v1/models",
        "url.query": f"api_key={mark}&q=token",
        "http.request.header.authorization": mark,
        "http.request.header.x-api-key": mark,
        "http.request.header.accept": "text/html",
    }


def test_odd_values_do_not_affect_other_values() -> None:
    stage = Stage()
    stage.span(
        {
            "surrogate": "a\udc80b",
            "bytes": b"\xff\xfe",
            "none": None,
            "large": 1 << 80,
            "huge": 10**5000,
            "nan": math.nan,
            "within": {"x": ["\ud800", 1 << 70]},
            "neighbour": "fine",
        }
    )
    (span,) = decode(encode_spans([stage.last]).SerializeToString())
    exported = dict(span.attributes)
    assert math.isnan(exported.pop("nan"))
    assert str(exported.pop("huge")).startswith("0x")
    assert str(exported.pop("within")).count("\\\\ud800") == 1
    assert exported == {
        "surrogate": "a\\udc80b",
        "bytes": b"\xff\xfe",
        "none": None,
        "large": "1208925819614629174706176",
        "neighbour": "fine",
    }


def test_a_value_that_cannot_be_processed_affects_only_its_span(
    caplog: pytest.LogCaptureFixture,
) -> None:
    deep: Any = "x"
    for _ in range(400):
        deep = {"a": deep}
    stage = Stage()
    span = stage.provider.get_tracer("agent").start_span("s", attributes={"ltrain.run.id": "r"})
    span.set_attribute("deep", deep)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(200)
    span.end()
    sys.setrecursionlimit(limit)
    assert stage.last.attributes == {"ltrain.run.id": "r", "ltrain.redacted": True}
    assert caplog.text.count("cannot be processed") == 1
    assert stage.span({"a": "é"}) == {"a": "é"}


def test_a_result_of_ten_megabytes_is_cut_and_named() -> None:
    stage = Stage()
    result = "0123456789" * MIB
    exported = stage.span(
        {
            "gen_ai.tool.call.result": result,
            "gen_ai.input.messages": messages(result),
            "ltrain.prompt_token_ids": "[1,2,3]",
            "small": "é",
        }
    )
    assert json.loads(exported["ltrain.cut"]) == {
        "gen_ai.tool.call.result": 10 * MIB,
        "gen_ai.input.messages": 10 * MIB + 62,
    }
    assert result.startswith(exported["gen_ai.tool.call.result"])
    text = json.loads(exported["gen_ai.input.messages"])[0]["parts"][0]["content"]
    assert result.startswith(text)
    assert len(exported["gen_ai.tool.call.result"]) > len(text) > MIB
    assert (exported["ltrain.prompt_token_ids"], exported["small"]) == ("[1,2,3]", "é")
    sent_bytes = len(encode_spans([stage.last]).SerializeToString())
    assert 2.8 * MIB < sent_bytes < 3.01 * MIB


def test_token_ids_are_complete_or_removed() -> None:
    exported = Stage(limit=1000).span(
        {"ltrain.prompt_token_ids": "1," * 600, "ltrain.prompt_token_count": 600, "a": "x" * 500}
    )
    cut = '{"ltrain.prompt_token_ids":1200}'
    assert exported == {"ltrain.prompt_token_count": 600, "a": "x" * 500, "ltrain.cut": cut}
    exported = Stage(limit=1000).span({"ltrain.prompt_token_ids": "1," * 300, "a": "x" * 5000})
    assert exported["ltrain.prompt_token_ids"] == "1," * 300
    assert exported["ltrain.cut"] == '{"a":5000}'


def test_the_longest_are_cut_to_a_common_length() -> None:
    values = {"a": "x" * 10, "b": "y" * 50, "c": "é" * 500, "d": [1] * 100}
    assert fit_values(values, frozenset(), 200) == {"c": "é" * 35, "d": None}
    assert fit_values(values, frozenset(), 5000) == {}


def test_a_span_that_starts_too_large_is_cut_at_its_start() -> None:
    stage = Stage(limit=2000)
    text = messages("a" * 9000)
    span = stage.provider.get_tracer("agent").start_span(
        "chat", attributes={"gen_ai.input.messages": text, "other": "b"}
    )
    assert isinstance(span, ReadableSpan)
    started = dict(span.attributes or {})
    assert len(started["gen_ai.input.messages"]) <= 2000
    assert json.loads(started["gen_ai.input.messages"])[0]["role"] == "user"
    span.set_attribute("gen_ai.output.messages", messages("c" * 3000))
    span.end()
    ended = dict(stage.last.attributes or {})
    cut = json.loads(ended["ltrain.cut"])
    assert cut == {
        "gen_ai.input.messages": len(text),
        "gen_ai.output.messages": len(messages("c" * 3000)),
    }
    assert ended["other"] == "b"


def test_tokens_of_a_span_that_was_redacted_at_its_start_are_removed() -> None:
    stage = Stage("secret", limit=2000)
    fields = {"gen_ai.input.messages": messages("secret " * 1000)}
    span = stage.provider.get_tracer("ltrain.gateway").start_span("chat", attributes=fields)
    span.set_attribute("gen_ai.output.messages", messages("fine"))
    span.set_attribute("ltrain.prompt_token_ids", "[1,2]")
    span.end()
    ended = dict(stage.last.attributes or {})
    assert ended["ltrain.redacted"] is True
    assert "ltrain.prompt_token_ids" not in ended
    assert "secret" not in str(ended)


def test_many_short_texts_become_one_text_that_is_cut() -> None:
    stage = Stage(limit=3000)
    parts = json.dumps([{"type": "text"}] * 10_000)
    assert len(stage.span({"gen_ai.input.messages": parts})["gen_ai.input.messages"]) <= 3000
