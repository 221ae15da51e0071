"""Converts OpenAI's chat messages to the format of OpenTelemetry's `gen_ai.*.messages`."""

from typing import Any

from ltrain_instrument.tokens.response import Choice

Message = dict[str, Any]


def input_messages(body: Message) -> list[Message]:
    """Return a request's messages; a text prompt is a user's message, token ids give none."""
    prompt = body.get("prompt")
    messages = body.get("messages") or [{"role": "user", "content": prompt}]
    if isinstance(prompt, list):
        messages = []
    return [{"role": each.get("role"), "parts": _parts(each)} for each in messages]


def output_messages(choices: list[Choice]) -> list[Message]:
    """Return one message per choice."""
    return [
        {
            "role": choice.message.get("role") or "assistant",
            "parts": _parts(choice.message),
            "finish_reason": choice.finish_reason,
        }
        for choice in choices
    ]


def _parts(message: Message) -> list[Message]:
    if message.get("role") == "tool":
        response = {"id": message.get("tool_call_id"), "response": message.get("content")}
        return [{"type": "tool_call_response", **response}]
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    parts = [{"type": "reasoning", "content": reasoning}] if reasoning else []
    parts += _content(message.get("content"))
    if message.get("refusal"):
        parts.append({"type": "refusal", "content": message["refusal"]})
    return parts + [_call(call) for call in message.get("tool_calls") or ()]


def _content(content: Any) -> list[Message]:
    if isinstance(content, str):
        return [{"type": "text", "content": content}] if content else []
    return [_part(part) for part in content or ()]


def _part(part: Any) -> Message:
    if isinstance(part, dict) and part.get("type") == "text":
        return {"type": "text", "content": part.get("text")}
    return part if isinstance(part, dict) else {"type": "text", "content": str(part)}


def _call(call: Message) -> Message:
    function = call.get("function") or {}
    function_fields = {"id": call.get("id"), "name": function.get("name")}
    return {"type": "tool_call", **function_fields, "arguments": function.get("arguments")}
