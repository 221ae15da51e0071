"""The turns of an agent that uses Anthropic's beta client with all that it sends."""

import json
from typing import Any

from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from pydantic import TypeAdapter
from tests.fake_vllm import CALLS, REASONING
from tests.train.gateway.apis.test_messages import LIMIT, client

__all__ = ["client"]  # a fixture

CACHED = {"cache_control": {"type": "ephemeral"}}
BETAS = ["interleaved-thinking-2025-05-14", "context-management-2025-06-27"]
TOOLS = [
    {"type": "bash_20250124", "name": "bash", **CACHED},
    {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 99},
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
    {"name": "weather", "input_schema": {"type": "object"}, "strict": False, **CACHED},
]
IMAGE = {"type": "base64", "media_type": "image/png", "data": "AA"}
DOCUMENT = {"type": "text", "media_type": "text/plain", "data": "warm"}
EVENTS: TypeAdapter[Any] = TypeAdapter(BetaRawMessageStreamEvent)


def sent_fields(messages: list[Any]) -> dict[str, Any]:
    return {
        "model": "claude",
        "max_tokens": LIMIT,
        "system": [{"type": "text", "text": "be brief", **CACHED}],
        "messages": messages,
        "tools": TOOLS,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "metadata": {"user_id": "user_ab_account__session_s-1111111"},
        "betas": BETAS,
    }


def ask(client: Any, messages: list[Any]) -> BetaMessage:
    """Return the message of a stream whose events have the API's types."""
    with client.beta.messages.stream(**sent_fields(messages)) as stream:
        for event in stream:
            if event.type.startswith(("message", "content_block")):
                EVENTS.validate_python(event.to_dict())
        message: BetaMessage = stream.get_final_message()
    return BetaMessage.model_validate(message.to_dict())


def test_an_agent_of_the_beta_client_thinks_calls_and_ends(
    client: Any, stage: Any, vllm: Any
) -> None:
    question = {"role": "user", "content": [{"type": "text", "text": "think call w3", **CACHED}]}
    first = ask(client, [question])
    assert (first.stop_reason, [block.type for block in first.content]) == (
        "tool_use",
        ["thinking", "text", "tool_use", "tool_use"],
    )
    rome, oslo = ({"type": "tool_result", "tool_use_id": call["id"]} for call in CALLS)
    results = [
        {**rome, "is_error": True, "content": [{"type": "image", "source": IMAGE}]},
        {**oslo, "content": [{"type": "document", "source": DOCUMENT}], **CACHED},
        {"type": "text", "text": "think w5"},
    ]
    turn = {"role": "assistant", "content": [block.to_dict() for block in first.content]}
    last = ask(client, [question, turn, {"role": "user", "content": results}])
    assert [block.type for block in last.content] == ["thinking", "text"]
    assert vllm.requests[-1]["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "think call w3"},
        {"role": "assistant", "reasoning": REASONING, "content": " w3", "tool_calls": CALLS},
        {
            "role": "tool",
            "tool_call_id": "call-rome",
            "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}],
        },
        {"role": "tool", "tool_call_id": "call-oslo", "content": "warm"},
        {"role": "user", "content": "think w5"},
    ]
    names = [tool["function"]["name"] for tool in vllm.requests[-1]["tools"]]
    assert names == ["bash", "str_replace_based_edit_tool", "weather"]
    spans = [each["attributes"] for each in stage.spans()]
    assert {span["gen_ai.conversation.id"] for span in spans} == {"s-1111111"}
    assert [
        (span["gen_ai.tool.call.id"], span.get("error.type"))
        for span in spans
        if span["gen_ai.operation.name"] == "execute_tool"
    ] == [("call-rome", "tool_error"), ("call-oslo", None)]
    omitted = [json.loads(span["ltrain.omitted"]) for span in spans if "ltrain.omitted" in span]
    assert omitted == [{"tool web_search": 1}] * 2
