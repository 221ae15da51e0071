"""Spans of SDKs that no capture here is of, with the very attributes that their sources write."""

import json
from typing import Any

import polars as pl
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


def test_vercel() -> None:
    """ai 6: `generate-text.ts`; spans `ai.generateText`, its `.doGenerate` and `ai.toolCall`."""
    prompt = [
        {"role": "system", "content": "Be terse."},
        {"role": "user", "content": [{"type": "text", "text": "weather in Paris?"}]},
    ]
    call = {"toolCallId": "c1", "toolName": "weather", "input": '{"city":"Paris"}'}
    result = {
        "toolCallId": "c1",
        "toolName": "weather",
        "output": {"type": "text", "value": "sunny"},
    }
    again = [
        *prompt,
        {
            "role": "assistant",
            "content": [{"type": "tool-call", **call, "input": {"city": "Paris"}}],
        },
        {"role": "tool", "content": [{"type": "tool-result", **result}]},
    ]
    loop = {
        "operation.name": "ai.generateText guide",
        "resource.name": "guide",
        "ai.operationId": "ai.generateText",
        "ai.telemetry.functionId": "guide",
        "ai.telemetry.metadata.sessionId": "s1",
        "ai.model.id": "gpt-4o-mini",
        "ai.prompt": json.dumps({"prompt": "weather in Paris?"}),
        "ai.response.text": "Sun.",
        "ai.settings.maxRetries": "2",
    }
    step = {
        "operation.name": "ai.generateText.doGenerate guide",
        "ai.operationId": "ai.generateText.doGenerate",
        "ai.model.provider": "openai.chat",
        "ai.model.id": "gpt-4o-mini",
        "ai.prompt.messages": json.dumps(prompt),
        "ai.response.finishReason": "tool-calls",
        "ai.response.toolCalls": json.dumps([call]),
        "ai.response.id": "chatcmpl-1",
        "ai.response.model": "gpt-4o-mini-2024-07-18",
        "ai.usage.inputTokens": "12",
        "ai.usage.outputTokens": "7",
        "gen_ai.system": "openai.chat",
        "gen_ai.request.model": "gpt-4o-mini",
        "gen_ai.request.temperature": "0.2",
        "gen_ai.response.finish_reasons": '["tool-calls"]',
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.usage.input_tokens": "12",
        "gen_ai.usage.output_tokens": "7",
    }
    tool = {
        "operation.name": "ai.toolCall guide",
        "ai.operationId": "ai.toolCall",
        "ai.toolCall.name": "weather",
        "ai.toolCall.id": "c1",
        "ai.toolCall.args": '{"city":"Paris"}',
        "ai.toolCall.result": '"sunny"',
    }
    streamed = {
        "ai.operationId": "ai.streamText.doStream",
        "ai.model.id": "gpt-4o-mini",
        "ai.prompt.messages": json.dumps(again),
        "ai.response.text": "Sun.",
        "ai.response.finishReason": "stop",
        "ai.usage.promptTokens": "20",  # ai 4's name
        "ai.usage.completionTokens": "3",
    }
    agent, first, tooled, second = rows(
        span("ai.generateText", loop, at=(0, 20), scope="ai"),
        span("ai.generateText.doGenerate", step, parent="ai.generateText", at=(1, 5), scope="ai"),
        span("ai.toolCall", tool, parent="ai.generateText", at=(6, 7), scope="ai"),
        span("ai.streamText.doStream", streamed, parent="ai.generateText", at=(8, 12), scope="ai"),
    )
    assert (agent["kind"], agent["agent"], agent["output"]) == ("agent", "guide", "Sun.")
    assert (first["kind"], first["name"]) == ("llm", "gpt-4o-mini-2024-07-18")
    assert (first["agent"], first["finish_reason"]) == ("guide", "tool_calls")
    assert texts(first["input"]) == ASKED
    assert texts(first["output"]) == [("assistant", "weather")]
    assert (first["input_tokens"], first["output_tokens"], first["temperature"]) == (12, 7, 0.2)
    assert (tooled["name"], tooled["tool_call_id"], tooled["result"]) == (
        "weather",
        "c1",
        '"sunny"',
    )
    assert tooled["requested_by"] == first["call_id"]
    assert texts(second["input"]) == [*ASKED, ("assistant", "weather"), ("tool", "sunny")]
    assert texts(second["output"]) == [("assistant", "Sun.")]
    assert (second["input_tokens"], second["output_tokens"]) == (20, 3)


def test_spans_of_no_dialect_are_structure() -> None:
    (only,) = rows(
        span("outer", {"http.method": "POST"}, at=(0, 9)),
        span("model", {"gen_ai.operation.name": "chat"}, parent="outer", at=(1, 2)),
        span("future", {"gen_ai.operation.name": "dream", "ai.operationId": "ai.dream"}, at=(3, 4)),
        span("typed", {"langfuse.observation.type": "guardrail"}, at=(5, 6)),
    )
    assert (only["call_id"], only["parent_id"]) == ("model", None)


def test_vllms_own_span_is_no_call() -> None:
    """vLLM 0.32 traces latency and usage only, below the gateway's span."""
    values = {
        "gen_ai.usage.prompt_tokens": "3",
        "gen_ai.latency.e2e": "0.1",
        "gen_ai.request.n": "1",
    }
    call_rows = rows(
        span("chat", {"gen_ai.operation.name": "chat"}, at=(0, 9), scope="ltrain.gateway"),
        span("llm_request", values, parent="chat", at=(1, 8), scope="vllm.llm_engine"),
    )
    assert [(row["call_id"], row["source_spans"]) for row in call_rows] == [("chat", ["chat"])]


def test_an_embedding_is_named_by_its_model() -> None:
    attributes = {"gen_ai.operation.name": "embeddings", "gen_ai.request.model": "e5"}
    (row,) = rows(span("embeddings e5", attributes))
    assert (row["kind"], row["name"]) == ("embedding", "e5")


def test_tokens_of_one_span_stay_together() -> None:
    """A gateway's retry whose ids were cut does not borrow the ids of the attempt before."""
    at = "ltrain."
    attributes = {"gen_ai.operation.name": "chat", at + "response_logprobs": "AAAAvw=="}
    whole = {**attributes, at + "prompt_token_ids": "[1,2]", at + "response_token_ids": "[3]"}
    cut = {**attributes, at + "prompt_token_ids": "[7,", at + "response_token_ids": "[8]"}
    call_rows, drops = calls(
        spans(
            span("sdk", {"gen_ai.operation.name": "chat"}, at=(0, 20)),
            span("first", whole, parent="sdk", at=(1, 2), scope="ltrain.gateway"),
            span("second", cut, parent="sdk", at=(3, 9), scope="ltrain.gateway"),
        )
    )
    tokens = call_rows.select(
        "source_spans", "prompt_token_ids", "response_token_ids", "response_logprobs"
    )
    assert tokens.rows() == [
        (["sdk", "second"], None, None, None),
        (["first"], [1, 2], [[3]], [[-0.5]]),
    ]
    assert drops.select("stage", "id", "reason").rows() == [
        ("calls", "second:ltrain.prompt_token_ids", "not_json")
    ]


def test_drops_of_calls_have_the_tables_types() -> None:
    _, drops = calls(spans())
    assert drops.schema == pl.Schema(
        dict.fromkeys(("stage", "id", "reason", "detail"), pl.String())
    )


def test_tokens_that_were_thought_or_cached() -> None:
    """The conventions' names, traceloop's, pydantic-ai's and OpenInference's."""
    chat = {"gen_ai.operation.name": "chat"}
    usage = "gen_ai.usage."
    oi = {"openinference.span.kind": "LLM"}
    call_rows = rows(
        span(
            "a",
            {
                **chat,
                usage + "reasoning.output_tokens": "3",
                usage + "cache_read.input_tokens": "9",
            },
        ),
        span(
            "b", {**chat, usage + "reasoning_tokens": "4", usage + "cache_read_input_tokens": "8"}
        ),
        span("c", {**chat, usage + "details.reasoning_tokens": "5"}),
        span("d", {**oi, "llm.token_count.completion_details.reasoning": "6"}),
    )
    values = [(call["reasoning_tokens"], call["cached_tokens"]) for call in call_rows]
    assert values == [(3, 9), (4, 8), (5, None), (6, None)]


def test_a_stream_that_its_reader_left_is_no_error() -> None:
    """OpenInference's LangChain instrumentor: closing a generator raises GeneratorExit in it."""
    event = json.dumps([["exception", {"exception.type": "GeneratorExit"}]])
    (call,) = rows(
        span("a", {"openinference.span.kind": "LLM"}, status="Error", events=event),
    )
    assert (call["status"], call["error_type"], call["delivered"]) == ("ok", None, False)


def test_a_hand_off_is_the_request_that_is_left() -> None:
    """OpenInference's Agents SDK instrumentor says neither the tool's name nor its call's id."""
    requests = [
        {"type": "tool_call", "id": "c1", "name": "weather", "arguments": {"city": "Oslo"}},
        {"type": "tool_call", "id": "c2", "name": "transfer_to_clerk", "arguments": {}},
    ]
    response = {
        "openinference.span.kind": "LLM",
        "llm.finish_reason": "stop",
        "output.value": '{"id": "resp_1", "object": "response"}',
        **{
            f"llm.output_messages.0.message.tool_calls.{n}.tool_call.{name}": str(value)
            for n, call in enumerate(requests)
            for name, value in (("id", call["id"]), ("function.name", call["name"]))
        },
    }
    tool = {"openinference.span.kind": "TOOL"}
    moved = {**tool, "input.value": "traveller", "output.value": "clerk"}
    llm, handed, tooled = rows(
        span("response", response, at=(0, 1)),
        span("handoff to clerk", moved, at=(2, 3)),
        span("weather", {**tool, "tool.name": "weather", "output.value": "snow"}, at=(4, 5)),
    )
    assert llm["finish_reason"] == "tool_calls"
    values = [
        (call["name"], call["tool_call_id"], call["requested_by"]) for call in (handed, tooled)
    ]
    assert values == [("transfer_to_clerk", "c2", "response"), ("weather", "c1", "response")]
    assert handed["result"] == "clerk"


def test_openinferences_thoughts_are_no_text() -> None:
    at = "llm.output_messages.0.message."
    thought = {"contents.99.message_content.type": "reasoning"}
    thought |= {"contents.99.message_content.text": "A city."}
    attributes = {"role": "assistant", "content": "Rome.", **thought}
    named = {at + name: value for name, value in attributes.items()}
    (call,) = rows(span("a", {"openinference.span.kind": "LLM", **named}))
    (message,) = json.loads(call["output"])
    assert message["parts"] == [
        {"type": "reasoning", "content": "A city."},
        {"type": "text", "content": "Rome."},
    ]
