"""LangChain, the OpenAI client and the gateway share one trace, whatever surrounds them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.instrument.conftest import Model, ReceivedSpan, Sink, Start

LANGCHAIN = "openinference.instrumentation.langchain"
PATHS = [
    "LangGraph",
    "LangGraph > model",
    "LangGraph > model",
    "LangGraph > model > ChatOpenAI",
    "LangGraph > model > ChatOpenAI",
    "LangGraph > tools",
    "LangGraph > tools > weather",
    "LangGraph > tools > weather > gen_ai.evaluation.result",
]


def _paths(spans: list[ReceivedSpan]) -> list[str]:
    by_id = {span.id: span for span in spans}

    def path(span: ReceivedSpan) -> str:
        parent = by_id.get(span.parent)
        return f"{path(parent)} > {span.name}" if parent else span.name

    return sorted(path(span) for span in spans if span.name != "ltrain.process")


@pytest.mark.parametrize(
    "mode", ["plain", pytest.param("stream", marks=pytest.mark.nightly), "ambient"]
)
def test_an_agent_is_one_trace(start: Start, sink: Sink, model: Model, mode: str) -> None:
    assert start("weather", mode).wait() == (0, "", "")
    around = ["ambient", *(f"ambient > {path}" for path in PATHS)]
    assert _paths(sink.spans) == (around if mode == "ambient" else PATHS)
    (trace,) = {span.trace for span in sink.spans}
    calls = {span.id for span in sink.named("ChatOpenAI")}
    parents = [headers["traceparent"].split("-") for _, headers, _ in model.requests]
    assert [parent[1] for parent in parents] == [trace] * 2
    assert {parent[2] for parent in parents} == calls


def test_calls_carry_their_content(start: Start, sink: Sink, model: Model) -> None:
    start("weather", "plain").wait()
    for span in sink.named("ChatOpenAI"):
        assert span.attributes["llm.input_messages.0.message.content"].startswith("How is")
    _, last = sink.named("ChatOpenAI")
    assert last.attributes["llm.output_messages.0.message.content"] == "sunny"
    (tool,) = sink.named("weather")
    assert tool.attributes["output.value"]


def test_a_manual_span_in_a_tool_is_the_parent_of_its_calls(start: Start, sink: Sink) -> None:
    assert start("weather", "raw").wait()[0] == 0
    (manual,) = sink.named("by-hand")
    inner = [span for span in sink.named("openai.chat") if span.parent == manual.id]
    assert len(inner) == 1


@pytest.mark.parametrize("mode", ["threads", pytest.param("tasks", marks=pytest.mark.nightly)])
def test_each_concurrent_rollout_is_one_trace(
    start: Start, sink: Sink, model: Model, mode: str
) -> None:
    status, _, err = start("weather", mode).wait()
    assert (status, err) == (0, "")
    rollouts = {span.attributes["ltrain.rollout.id"] for span in sink.spans}
    assert rollouts == {f"r{k}" for k in range(12)}
    for rollout in rollouts:
        rollout_spans = [s for s in sink.spans if s.attributes["ltrain.rollout.id"] == rollout]
        assert len({span.trace for span in rollout_spans}) == 1
        assert _paths(rollout_spans) == ["ambient", *(f"ambient > {path}" for path in PATHS)]
        reported = [
            s.attributes["ltrain.rollout.spans"]
            for s in rollout_spans
            if s.name == "ltrain.process"
        ]
        assert max(reported) == len(PATHS) + 1


@pytest.mark.nightly
def test_the_client_without_langchain_sends_its_trace(
    start: Start, sink: Sink, model: Model
) -> None:
    assert start("client").wait() == (0, "", "")
    assert Counter(_paths(sink.spans)) == {"openai.chat": 3}
    sent = {headers["traceparent"].split("-")[2] for _, headers, _ in model.requests}
    assert sent == {span.id for span in sink.spans}
