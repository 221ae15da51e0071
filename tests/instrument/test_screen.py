"""What leaves the process: redacted, readable, short enough; whole spans as exporters get them."""

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

from ltrain_instrument.limits import fit_values
from ltrain_instrument.redaction import Redaction
from ltrain_instrument.screen import Sanitizer

MIB = 1 << 20


class Stage:
    """A provider with the screen before an exporter."""

    def __init__(self, *patterns: str, limit: int = 3 * MIB) -> None:
        redaction = Redaction([re.compile(each) for each in patterns]) if patterns else None
        self.screen = Sanitizer(redaction, limit)
        self.exported = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(self.screen)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exported))

    def span(self, attributes: dict[str, Any], scope: str = "agent") -> dict[str, Any]:
        self.provider.get_tracer(scope).start_span("chat", attributes=attributes).end()
        return dict(self.last.attributes or {})

    @property
    def last(self) -> ReadableSpan:
        return self.exported.get_finished_spans()[-1]


def messages(content: str) -> str:
    return json.dumps([{"role": "user", "parts": [{"type": "text", "content": content}]}])


def test_a_redacted_call_loses_text_and_tokens_and_says_so() -> None:
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


def test_a_call_without_a_match_is_as_it_was() -> None:
    told = {
        "gen_ai.input.messages": messages("hello"),
        "gen_ai.output.messages": messages("1"),
        "ltrain.prompt_token_ids": "[5,6]",
    }
    assert Stage(r"\d{4}").span(told) == told


def test_token_ids_without_the_texts_to_judge_them_by_go() -> None:
    told = {"gen_ai.response.id": "r", "ltrain.prompt_token_ids": "[5,6]"}
    assert Stage("x").span(told) == {"gen_ai.response.id": "r", "ltrain.redacted": True}
    assert Stage().span(told) == told


@pytest.mark.parametrize(
    ("value", "kept"),
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
def test_patterns_see_the_text_inside_of_json(value: Any, kept: Any) -> None:
    found = Stage("café", "77", '"key": ?"x"').span({"v": value})["v"]
    if isinstance(found, dict | tuple):
        found = json.loads(json.dumps(found))
        kept = json.loads(json.dumps(kept))
    assert found == kept


def test_events_status_and_name_are_redacted_too() -> None:
    stage = Stage("alice")
    span = stage.provider.get_tracer("agent").start_span("tool alice")
    span.add_event("exception", {"exception.message": "no alice", "n": 1}, timestamp=7)
    span.set_status(StatusCode.ERROR, "alice failed")
    span.end()
    last = stage.last
    assert (last.name, last.status.description) == ("tool [redacted]", "[redacted] failed")
    (event,) = last.events
    told = {"exception.message": "no [redacted]", "n": 1}
    assert (event.name, dict(event.attributes or {}), event.timestamp) == ("exception", told, 7)
    assert last.attributes == {"ltrain.redacted": True}


def test_without_a_readable_pattern_no_text_leaves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LTRAIN_REDACT", "(")
    stage = Stage()
    stage.screen.redaction = Sanitizer.for_agent().redaction
    assert caplog.text.count("is not a valid regular expression") == 1
    assert "no text of any span is sent" in caplog.text
    told = {"input.value": "hello", "openinference.span.kind": "LLM", "ltrain.run.id": "a", "n": 1}
    assert stage.span(told) == {
        "input.value": "[redacted]",
        "openinference.span.kind": "LLM",
        "ltrain.run.id": "a",
        "n": 1,
        "ltrain.redacted": True,
    }


def test_keys_in_addresses_never_leave() -> None:
    found = Stage().span(
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
    assert found == {
        "url.full": f"https://{mark}@host:1/v1?key={mark}&page=2&X-Goog-Signature={mark}",
        "http.url": "http://host/v1/models",
        "url.query": f"api_key={mark}&q=token",
        "http.request.header.authorization": mark,
        "http.request.header.x-api-key": mark,
        "http.request.header.accept": "text/html",
    }


def test_odd_values_are_sent_beside_their_neighbours() -> None:
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
    found = dict(span.attributes)
    assert math.isnan(found.pop("nan"))
    assert str(found.pop("huge")).startswith("0x")
    assert str(found.pop("within")).count("\\\\ud800") == 1
    assert found == {
        "surrogate": "a\\udc80b",
        "bytes": b"\xff\xfe",
        "none": None,
        "large": "1208925819614629174706176",
        "neighbour": "fine",
    }


def test_a_value_that_breaks_everything_costs_only_its_own_span(
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
    found = stage.span(
        {
            "gen_ai.tool.call.result": result,
            "gen_ai.input.messages": messages(result),
            "ltrain.prompt_token_ids": "[1,2,3]",
            "small": "é",
        }
    )
    assert json.loads(found["ltrain.cut"]) == {
        "gen_ai.tool.call.result": 10 * MIB,
        "gen_ai.input.messages": 10 * MIB + 62,
    }
    assert result.startswith(found["gen_ai.tool.call.result"])
    text = json.loads(found["gen_ai.input.messages"])[0]["parts"][0]["content"]
    assert result.startswith(text)
    assert len(found["gen_ai.tool.call.result"]) > len(text) > MIB
    assert (found["ltrain.prompt_token_ids"], found["small"]) == ("[1,2,3]", "é")
    sent_bytes = len(encode_spans([stage.last]).SerializeToString())
    assert 2.8 * MIB < sent_bytes < 3.01 * MIB


def test_token_ids_are_whole_or_gone() -> None:
    found = Stage(limit=1000).span(
        {"ltrain.prompt_token_ids": "1," * 600, "ltrain.prompt_token_count": 600, "a": "x" * 500}
    )
    cut = '{"ltrain.prompt_token_ids":1200}'
    assert found == {"ltrain.prompt_token_count": 600, "a": "x" * 500, "ltrain.cut": cut}
    found = Stage(limit=1000).span({"ltrain.prompt_token_ids": "1," * 300, "a": "x" * 5000})
    assert found["ltrain.prompt_token_ids"] == "1," * 300
    assert found["ltrain.cut"] == '{"a":5000}'


def test_the_longest_are_cut_to_a_common_length() -> None:
    values = {"a": "x" * 10, "b": "y" * 50, "c": "é" * 500, "d": [1] * 100}
    assert fit_values(values, frozenset(), 200) == {"c": "é" * 35, "d": None}
    assert fit_values(values, frozenset(), 5000) == {}
