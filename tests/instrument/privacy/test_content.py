"""Without content no attribute or event with content is left, whatever wrote it."""

import os

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ltrain_instrument.privacy import content
from ltrain_instrument.privacy.sanitizer import Sanitizer


@pytest.mark.parametrize("recorded", [True, False])
def test_a_sanitizer_without_content_removes_it(
    monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    monkeypatch.setenv(content.SWITCH, "true" if recorded else "NO_CONTENT")
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(Sanitizer(None, 10_000))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    kept = {"tool.name": "weather", "llm.token_count.prompt": 7, "gen_ai.operation.name": "chat"}
    hidden = {
        "tool.parameters": "{}",
        "llm.input_messages.0.message.content": "hi",
        "gen_ai.output.messages": "[]",
        "gcp.vertex.agent.llm_request": "{}",
        "gen_ai.prompt.0.content": "hi",
    }
    with provider.get_tracer("t").start_as_current_span("s", attributes={**kept, **hidden}) as span:
        span.add_event("memory.query", {"content": "Who is Bob?"})
        span.add_event("exception", {"exception.message": "no"})
    [ended] = exporter.get_finished_spans()
    assert dict(ended.attributes or {}) == (kept | hidden if recorded else kept)
    events = {event.name: dict(event.attributes or {}) for event in ended.events}
    assert events["memory.query"] == ({"content": "Who is Bob?"} if recorded else {})
    assert events["exception"] == {"exception.message": "no"}


def test_strands_redacts_all_content_and_keeps_what_else_was_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in content.OTHER_SWITCHES:
        monkeypatch.setenv(name, "chosen")
    monkeypatch.setenv(content.SWITCH, "NO_CONTENT")
    monkeypatch.setenv(content.OPT_IN, "http/dup")
    for _ in range(2):
        content.hide_content_elsewhere()
        assert os.environ[content.OPT_IN] == f"http/dup,{content.UNREDACTED}"
    assert {os.environ[name] for name in content.OTHER_SWITCHES} == {"chosen"}
