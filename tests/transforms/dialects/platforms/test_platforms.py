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


def test_braintrust() -> None:
    """braintrust-sdk-go: `trace/contrib/openai`, `mcp`; flattened values are those of .NET."""
    at = "braintrust."
    arguments = '{"city": "Paris"}'
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    choice = {"role": "assistant", "content": None, "tool_calls": [call]}
    chat = {
        at + "span_attributes": '{"type": "llm"}',
        at + "input_json": json.dumps(QUESTION),
        at + "output_json": json.dumps([{"finish_reason": "tool_calls", "message": choice}]),
        at + "metadata": '{"model": "m", "provider": "openai", "temperature": 0.2, "id": "r1"}',
        at + "metrics": '{"prompt_tokens": 12, "completion_tokens": 7, "prompt_cached_tokens": 4, '
        '"completion_reasoning_tokens": 2}',
    }
    tool = {
        at + "span_attributes": '{"type": "tool"}',
        at + "metadata": '{"name": "weather", "provider": "mcp"}',
        at + "input_json": json.dumps({"name": "weather", "arguments": {"city": "Paris"}}),
        at + "output_json": '"sunny"',
    }
    flat = {
        at + "span_attributes.type": "llm",
        at + "input": json.dumps(QUESTION),
        at + "output": '{"role": "assistant", "content": "Sun."}',
        at + "metadata.model": "m",
        at + "metrics.prompt_tokens": "20",
        at + "metrics.completion_tokens": "3",
    }
    embedding = {
        at + "span_attributes": '{"type": "llm"}',
        at + "output_json": '{"embedding_length": 3}',
        at + "metadata": '{"model": "e"}',
        at + "metrics": '{"prompt_tokens": 5}',
    }
    task = {at + "span_attributes": '{"type": "task", "name": "guide"}', at + "input_json": '"hi"'}
    score = {at + "span_attributes": '{"type": "score"}', at + "output_json": '{"x": 1}'}
    node, first, tooled, second, embedded = rows(
        span("task", task, at=(0, 20)),
        span("Chat Completion", chat, parent="task", at=(1, 3)),
        span("mcp.tools.call [weather]", tool, parent="task", at=(4, 5), status="Error"),
        span("chat", flat, parent="task", at=(6, 8)),
        span("embed", embedding, parent="task", at=(9, 10)),
        span("score", score, parent="task", at=(11, 12)),
    )
    assert (node["kind"], node["input"]) == ("node", "hi")
    assert (texts(first["input"]), texts(first["output"])) == (ASKED, [("assistant", "weather")])
    counts = ("input_tokens", "output_tokens", "reasoning_tokens", "cached_tokens")
    assert [first[name] for name in counts] == [12, 7, 2, 4]
    assert (first["name"], first["finish_reason"], first["temperature"]) == ("m", "tool_calls", 0.2)
    assert [tooled[name] for name in ("name", "arguments", "result", "status")] == [
        *("weather", arguments, "sunny", "error")
    ]
    assert (tooled["requested_by"], tooled["tool_call_id"]) == (first["call_id"], "c1")
    assert texts(second["output"]) == [("assistant", "Sun.")]
    assert [second[name] for name in counts] == [20, 3, None, None]
    assert (embedded["kind"], embedded["name"], embedded["input_tokens"]) == ("embedding", "e", 5)


def test_weaves_own_names() -> None:
    """weave: `trace_server/agents/semconv.py`."""
    at = "weave."
    agent = {at + "operation.name": "invoke_agent", at + "agent.name": "guide"}
    chat = {
        at + "operation.name": "chat",
        at + "request.model": "m",
        at + "request.temperature": "0.2",
        at + "system_instructions": '[{"type": "text", "content": "Be terse."}]',
        at + "input.messages": json.dumps(QUESTION[1:]),
        at + "output.messages": '[{"role": "assistant", "content": "Sun."}]',
        at + "usage.input_tokens": "12",
        at + "usage.output_tokens": "7",
        at + "response.finish_reasons": '["stop"]',
    }
    tool = {
        at + "operation.name": "execute_tool",
        at + "tool.name": "weather",
        at + "tool.call.id": "c1",
        at + "tool.call.arguments": '{"city": "Paris"}',
        at + "error.type": "LookupError",
    }
    agented, llm, tooled, node = rows(
        span("invoke_agent guide", agent, at=(0, 9)),
        span("chat m", chat, parent="invoke_agent guide", at=(1, 3)),
        span("execute_tool weather", tool, parent="invoke_agent guide", at=(4, 5)),
        span("step", {at + "span.kind": "chain"}, parent="invoke_agent guide", at=(6, 7)),
    )
    assert (agented["kind"], agented["name"], node["kind"]) == ("agent", "guide", "node")
    assert (texts(llm["input"]), texts(llm["output"])) == (ASKED, [("assistant", "Sun.")])
    assert (llm["temperature"], llm["input_tokens"], llm["output_tokens"]) == (0.2, 12, 7)
    assert (llm["name"], llm["finish_reason"], llm["agent"]) == ("m", "stop", "guide")
    assert (tooled["name"], tooled["arguments"]) == ("weather", '{"city": "Paris"}')
    assert (tooled["tool_call_id"], tooled["error_type"]) == ("c1", "LookupError")


REQUEST = {"instructions": "Be terse.", "input": "weather in Paris?", "model": "m"}
ITEM = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "output": [{"type": "reasoning", "summary": []}, ITEM],
    "usage": {"input_tokens": 12, "output_tokens": 7, "output_tokens_details": {"reasoning": 2}},
}
AGAIN = [
    {"role": "user", "content": "weather in Paris?"},
    ITEM,
    {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
]


def test_the_responses_api() -> None:
    """mlflow 3: `mlflow/openai/autolog.py` writes whole requests and responses."""
    kind = {"mlflow.spanType": '"CHAT_MODEL"'}
    first, second = rows(
        span(
            "Responses",
            {**kind, "mlflow.spanInputs": json.dumps(REQUEST)}
            | {"mlflow.spanOutputs": json.dumps(RESPONSE)},
        ),
        span("Responses_2", {**kind, "mlflow.spanInputs": json.dumps({"input": AGAIN})}, at=(2, 3)),
    )
    assert (texts(first["input"]), texts(first["output"])) == (ASKED, [("assistant", "weather")])
    assert [first[name] for name in ("input_tokens", "output_tokens", "reasoning_tokens")] == [
        *(12, 7, 2)
    ]
    assert texts(second["input"]) == [
        *(("user", "weather in Paris?"), ("assistant", "weather"), ("tool", "sunny"))
    ]


def test_logfire_and_the_responses_api() -> None:
    """logfire 5: `integrations/openai_agents.py`, `get_response_span_events`."""
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    events = [
        {"event.name": "gen_ai.system.message", "content": "Be terse.", "role": "system"},
        {"event.name": "gen_ai.user.message", "content": "weather in Paris?", "role": "user"},
        {
            "event.name": "gen_ai.choice",
            "index": 0,
            "message": {"role": "assistant", "tool_calls": [call]},
        },
    ]
    response = {
        "logfire.msg_template": "Responses API with {gen_ai.request.model!r}",
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": "12",
        "events": json.dumps(events),
    }
    hand_off = {
        "logfire.msg_template": "Handoff: {from_agent} → {to_agent}",
        "to_agent": "clerk",
    }
    scope = "logfire.openai_agents"
    llm, tool = rows(
        span("response", response, scope=scope),
        span("handoff", hand_off, at=(2, 3), scope=scope),
    )
    assert (texts(llm["input"]), texts(llm["output"])) == (ASKED, [("assistant", "weather")])
    assert (llm["name"], llm["input_tokens"]) == ("m", 12)
    assert (tool["kind"], tool["requested_by"], tool["result"]) == ("tool", "response", "clerk")


def test_opiks_input_and_output() -> None:
    """opik: `GeneralMappingRules.java`; without them a span is no call."""
    chat = {"gen_ai.operation.name": "chat", "opik.tags": "t", "input": json.dumps(QUESTION)}
    llm, node = rows(
        span("chat", {**chat, "output": "Sun."}),
        span("step", {"opik.metadata.a": "1", "input": "hi"}, at=(2, 3)),
        span("other", {"opik.span_id": "1"}, at=(4, 5)),
    )
    assert (texts(llm["input"]), texts(llm["output"])) == (ASKED, [("assistant", "Sun.")])
    assert (node["kind"], node["input"]) == ("node", "hi")


def test_laminars_functions_that_call_a_model() -> None:
    """lmnr 0.8: `@observe(span_type="LLM")` has no attributes of the conventions."""
    at = "lmnr.span."
    observed = {
        at + "type": "CACHED",
        at + "original_type": "LLM",
        at + "input": json.dumps({"messages": QUESTION}),
        at + "output": '"Sun."',
    }
    (llm,) = rows(
        span("ask", observed), span("e", {at + "type": "EVALUATOR", at + "input": "1"}, at=(2, 3))
    )
    assert (texts(llm["input"]), texts(llm["output"])) == (ASKED, [("assistant", "Sun.")])
