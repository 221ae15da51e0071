"""Spans of platforms that no capture here is of, with the attributes that their sources write."""

import json
from typing import Any

from tests.transforms.made import span, spans, texts

from ltrain_transforms.calls import calls

QUESTION = [
    {"role": "system", "content": "Be terse."},
    {"role": "user", "content": "weather in Paris?"},
]
ASKED = [("system", "Be terse."), ("user", "weather in Paris?")]


def rows(*made: dict[str, Any]) -> list[dict[str, Any]]:
    call_rows, drops = calls(spans(*made))
    assert drops.is_empty()
    return call_rows.to_dicts()


def test_langfuse() -> None:
    """langfuse-python 3: `langfuse/_client/attributes.py`, spans as `@observe` nests them."""
    at = "langfuse.observation."
    arguments = '{"city": "Paris"}'
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    generation = {
        at + "type": "generation",
        at + "model.name": "gpt-4o-mini",
        at + "model.parameters": '{"temperature": 0.2, "max_tokens": 64}',
        at + "input": json.dumps(QUESTION),
        at + "output": json.dumps({"role": "assistant", "content": None, "tool_calls": [call]}),
        at + "usage_details": '{"input": 12, "output": 7, "total": 19}',
        at + "metadata.langgraph_node": "plan",
        "langfuse.version": "1.2",
        "session.id": "s1",
    }
    tool = {at + "type": "tool", at + "input": arguments, at + "output": "sunny"}
    failed = {
        at + "type": "retriever",
        at + "input": "Paris",
        at + "level": "ERROR",
        at + "status_message": "index is gone",
    }
    event = {at + "type": "event", at + "input": "{}"}
    agent, llm, tooled, retrieved = rows(
        span("guide", {at + "type": "agent", "langfuse.trace.name": "trip"}, at=(0, 9)),
        span("answer", generation, parent="guide", at=(1, 3)),
        span("weather", tool, parent="guide", at=(4, 5)),
        span("search", failed, parent="guide", at=(6, 7)),
        span("note", event, parent="guide", at=(8, 8)),
    )
    assert (agent["kind"], agent["name"]) == ("agent", "guide")
    assert (llm["kind"], llm["name"], llm["agent"]) == ("llm", "gpt-4o-mini", "guide")
    assert (llm["node"], llm["version"]) == ("plan", "1.2")
    assert texts(llm["input"]) == ASKED
    assert texts(llm["output"]) == [("assistant", "weather")]
    assert (llm["temperature"], llm["input_tokens"], llm["output_tokens"]) == (0.2, 12, 7)
    assert (tooled["name"], tooled["arguments"], tooled["result"]) == (
        "weather",
        arguments,
        "sunny",
    )
    assert tooled["requested_by"] == "answer"
    assert (retrieved["kind"], retrieved["input"]) == ("retrieval", "Paris")
    assert retrieved["status"] == "error"


def test_langsmith() -> None:
    """langsmith 0.4: `_internal/otel/_otel_exporter.py`, runs of LangChain and wrapped OpenAI."""
    human = {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "HumanMessage"]}
    ai = {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "AIMessage"]}
    requests = {"name": "weather", "args": {"city": "Paris"}, "id": "c1", "type": "tool_call"}
    answered = {"content": "", "tool_calls": [requests], "type": "ai"}
    shared = {"langsmith.span.id": "r1", "langsmith.trace.id": "r0", "gen_ai.system": "openai"}
    chat = {
        **shared,
        "langsmith.span.kind": "llm",
        "langsmith.trace.name": "ChatOpenAI",
        "langsmith.metadata.ls_model_name": "gpt-4o-mini",
        "langsmith.metadata.langgraph_node": "model",
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "gpt-4o-mini",
        "gen_ai.request.temperature": "0.7",
        "gen_ai.usage.input_tokens": "12",
        "gen_ai.usage.output_tokens": "7",
        "gen_ai.prompt": json.dumps({"messages": [[{**human, "kwargs": {"content": "hi"}}]]}),
        "gen_ai.completion": json.dumps(
            {"generations": [[{"text": "", "message": {**ai, "kwargs": answered}}]]}
        ),
    }
    wrapped = {
        **shared,
        "langsmith.span.kind": "llm",
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "gpt-4o-mini",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.finish_reasons": "stop, stop",
        "gen_ai.prompt": json.dumps({"messages": QUESTION, "model": "gpt-4o-mini"}),
        "gen_ai.completion": json.dumps(
            {
                "choices": [
                    {"finish_reason": "stop", "message": {"role": "assistant", "content": "sun"}}
                ]
            }
        ),
    }
    tool = {
        **shared,
        "langsmith.span.kind": "tool",
        "langsmith.trace.name": "weather",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.prompt": json.dumps({"input": "{'city': 'Paris'}"}),
        "gen_ai.completion": json.dumps({"output": "sunny"}),
    }
    retriever = {
        **shared,
        "langsmith.span.kind": "retriever",
        "gen_ai.operation.name": "embeddings",
        "gen_ai.prompt": '{"query": "Paris"}',
    }
    prompt = {**shared, "langsmith.span.kind": "prompt", "gen_ai.operation.name": "chat"}
    exception = [["exception", {"exception.type": "Exception", "exception.message": "boom"}]]
    call_rows = rows(
        span("graph", {**shared, "langsmith.span.kind": "chain"}, at=(0, 30)),
        span("prompted", prompt, parent="graph", at=(1, 2)),
        span("modelled", chat, parent="graph", at=(3, 5)),
        span("tooled", tool, parent="graph", at=(6, 7)),
        span("retrieved", retriever, parent="graph", at=(8, 9)),
        span("wrapped", wrapped, parent="graph", at=(10, 12)),
        span(
            "failed",
            tool,
            parent="graph",
            at=(13, 14),
            status="Error",
            events=json.dumps(exception),
        ),
    )
    kinds = {row["call_id"]: row["kind"] for row in call_rows}
    assert kinds == {
        "graph": "node",
        "prompted": "node",
        "modelled": "llm",
        "tooled": "tool",
        "retrieved": "retrieval",
        "wrapped": "llm",
        "failed": "tool",
    }
    by_id = {row["call_id"]: row for row in call_rows}
    llm, tooled, other = by_id["modelled"], by_id["tooled"], by_id["wrapped"]
    assert texts(llm["input"]) == [("user", "hi")]
    assert texts(llm["output"]) == [("assistant", "weather")]
    assert (llm["node"], llm["temperature"], llm["input_tokens"]) == ("model", 0.7, 12)
    assert (tooled["name"], tooled["result"]) == ("weather", "sunny")
    assert (tooled["requested_by"], tooled["arguments"]) == ("modelled", '{"city": "Paris"}')
    assert texts(other["input"]) == ASKED
    assert texts(other["output"]) == [("assistant", "sun")]
    assert other["finish_reason"] == "stop"
    assert (by_id["failed"]["status"], by_id["failed"]["error_type"]) == ("error", "Exception")


def test_agentops() -> None:
    """agentops 0.4: `semconv/`, `sdk/decorators/utility.py`; session, agent, tools, OpenAI."""
    kind = "agentops.span.kind"
    openai = {
        kind: "llm",
        "gen_ai.system": "OpenAI",
        "gen_ai.request.model": "gpt-4o-mini",
        "gen_ai.response.model": "gpt-4o-mini-2024-07-18",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.request.temperature": "0.2",
        "gen_ai.usage.prompt_tokens": "12",
        "gen_ai.usage.completion_tokens": "7",
        "gen_ai.prompt.0.role": "system",
        "gen_ai.prompt.0.content": "Be terse.",
        "gen_ai.prompt.1.role": "user",
        "gen_ai.prompt.1.content": "weather in Paris?",
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.finish_reason": "tool_calls",
        "gen_ai.completion.0.tool_calls.0.id": "c1",
        "gen_ai.completion.0.tool_calls.0.name": "weather",
        "gen_ai.completion.0.tool_calls.0.arguments": '{"city": "Paris"}',
    }
    tool = {
        kind: "tool",
        "operation.name": "weather",
        "agentops.tool.input": '{"args": [], "kwargs": {"city": "Paris"}}',
        "agentops.tool.output": '"sunny"',
    }
    earlier = {
        kind: "tool",
        "agentops.operation.name": "lookup",
        "agentops.entity.input": '{"args": ["Paris"], "kwargs": {}}',
        "agentops.entity.output": '"rain"',
    }
    agent, llm, tooled, other = rows(
        span("s.session", {kind: "session", "operation.name": "s"}, at=(0, 30)),
        span("g.agent", {kind: "agent", "operation.name": "guide"}, parent="s.session", at=(1, 29)),
        span("openai.chat.completion", openai, parent="g.agent", at=(2, 5)),
        span("weather.tool", tool, parent="g.agent", at=(6, 7)),
        span("lookup.tool", earlier, parent="g.agent", at=(8, 9), status="Error"),
    )
    assert (agent["kind"], agent["name"], agent["parent_id"]) == ("agent", "guide", None)
    assert (llm["name"], llm["agent"]) == ("gpt-4o-mini-2024-07-18", "guide")
    assert texts(llm["input"]) == ASKED
    assert texts(llm["output"]) == [("assistant", "weather")]
    assert (llm["input_tokens"], llm["output_tokens"], llm["temperature"]) == (12, 7, 0.2)
    assert llm["finish_reason"] == "tool_calls"
    assert (tooled["arguments"], tooled["result"]) == ('{"city": "Paris"}', '"sunny"')
    assert tooled["requested_by"] == llm["call_id"]
    assert (other["name"], other["status"]) == ("lookup", "error")
    assert other["arguments"] == '{"args": ["Paris"], "kwargs": {}}'


def test_agent_lightning() -> None:
    """agent-lightning 0.3 on agentops 0.4: what its `TracerTraceToTriplet` reads."""
    attributes = {
        "gen_ai.request.type": "chat",
        "gen_ai.request.model": "sql",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": "weather in Paris?",
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": "sun",
        "prompt_token_ids": "[1, 2, 3]",
        "response_token_ids": "[[4, 5]]",
        "logprobs.content": '[{"token": "s", "logprob": -0.5}, {"token": "un", "logprob": -1}]',
    }
    bare = {name: text for name, text in attributes.items() if name != "logprobs.content"}
    call_rows, drops = calls(
        spans(
            span("openai.chat.completion", attributes, at=(0, 1)),
            span("without", bare, at=(2, 3)),
        )
    )
    first, second = call_rows.to_dicts()
    assert (first["prompt_token_ids"], first["response_token_ids"]) == ([1, 2, 3], [[4, 5]])
    assert first["response_logprobs"] == [[-0.5, -1.0]]
    assert texts(first["input"]) == [("user", "weather in Paris?")]
    assert texts(first["output"]) == [("assistant", "sun")]
    assert second["prompt_token_ids"] is None
    assert drops.select("id", "reason").rows() == [("without:prompt_token_ids", "no_logprobs")]
