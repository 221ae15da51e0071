"""Convert messages of SDKs and frameworks to messages of the gen_ai conventions.

Supported are OpenAI's requests, responses and messages, also those of its Responses API,
LangChain's serialised messages, the content parts of Anthropic, Bedrock and the AI SDK, and plain
text. Anything else yields no message.
"""

from collections.abc import Iterator
from typing import Any

from ltrain_transforms.dialects.attribute_messages import AttributeMessages
from ltrain_transforms.traces import (
    Fields,
    new_message,
    parse_json,
    request_part,
    result_part,
    text_part,
)

ROLES = {"human": "user", "ai": "assistant", "chat": "user", "developer": "system"}
"""LangChain's names of roles and OpenAI's newer one, with their names here."""
MESSAGE_KEYS = (
    *("messages", "choices", "generations", "message", "prompts", "kwargs", "data"),
    *("output", "input"),
)
"""Keys of requests, responses and envelopes that hold messages, in order of preference."""


def chat_messages(attribute: str, text: str | None, role: str) -> AttributeMessages | None:
    """Return the messages of an attribute; plain text is a message of `role`."""
    messages = list(iter_messages(parse_json(text), role)) if text else []
    return AttributeMessages.from_list(attribute, messages)


def iter_messages(value: Any, role: str) -> Iterator[Fields]:
    """Yield every message in `value`; a message without a role gets `role`."""
    if isinstance(value, str) and value:
        yield new_message(role, [text_part(value)])
    elif isinstance(value, list):
        for one in value:
            yield from iter_messages(one, role)
    elif isinstance(value, dict):
        yield from _messages_of_object(value, role)


def _messages_of_object(value: dict[str, Any], role: str) -> Iterator[Fields]:
    if isinstance(value.get("parts"), list):
        yield value
        return
    if value.get("type") in ITEMS:
        yield _item(value)
        return
    if value.get("input") and isinstance(value.get("instructions"), str):
        yield new_message("system", [text_part(value["instructions"])])
    role = _role(value) or role
    if "content" in value or value.get("tool_calls"):
        parts = list(_parts(value))
        if parts:
            yield new_message(role, parts)
        return
    inner = next((value[key] for key in MESSAGE_KEYS if value.get(key)), None)
    for message in iter_messages(inner, role):
        reason = value.get("finish_reason")
        yield {**message, "finish_reason": reason} if reason else message


ITEMS = ("function_call", "function_call_output")
"""Items of the Responses API that are not messages: a tool request, and its result."""


def _item(item: dict[str, Any]) -> Fields:
    id = item.get("call_id")
    if item["type"] == "function_call":
        request = request_part(id, item.get("name"), item.get("arguments"))
        return new_message("assistant", [request])
    return new_message("tool", [result_part(str(id or ""), item.get("output"))])


def _role(message: dict[str, Any]) -> str | None:
    """Return a message's role: its own, or that of LangChain's type or class."""
    role = message.get("role") or message.get("type")
    if role == "constructor" and isinstance(message.get("id"), list) and message["id"]:
        role = str(message["id"][-1]).removesuffix("Chunk").removesuffix("Message").lower()
    known = isinstance(role, str) and role not in ("message", "function", "not_implemented")
    return ROLES.get(role, role) if known else None  # type: ignore[arg-type]


def _parts(message: dict[str, Any]) -> Iterator[Fields]:
    content, tool_call_id = message.get("content"), message.get("tool_call_id")
    if tool_call_id:
        yield result_part(str(tool_call_id), content)
        return
    inner = content if isinstance(content, list) else [content]
    for one in inner:
        if isinstance(one, str) and one:
            yield text_part(one)
        elif isinstance(one, dict):
            yield _part(one)
    # Anthropic's requests are in the content, and LangChain repeats them in `tool_calls`
    ids = [part["id"] for part in inner if isinstance(part, dict) and part.get("id")]
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict) and call.get("id") not in ids:
            yield tool_call_part(call)


def _part(part: Fields) -> Fields:
    kind = part.get("type")
    if kind in ("tool-call", "tool_use"):
        return tool_call_part(part)
    if kind in ("tool-result", "tool_result"):
        output = part.get("output", part.get("result", part.get("content")))
        if isinstance(output, dict) and "value" in output:  # the AI SDK's {type, value}
            output = output["value"]
        return result_part(str(part.get("toolCallId") or part.get("tool_use_id") or ""), output)
    if kind in ("text", "input_text", "output_text"):
        return text_part(str(part.get("text") or part.get("content") or ""))
    return _untyped_part(part) if kind is None else part


BEDROCK_PARTS = frozenset(
    {
        *("text", "toolUse", "toolResult", "reasoningContent", "image", "document", "video"),
        *("audio", "citationsContent", "guardContent", "cachePoint", "searchResult"),
    }
)
"""The kinds of parts of Bedrock's Converse API; each is the only key of its part."""


def is_part(value: Any) -> bool:
    """Return whether a value is a part of a message: it names its type, or is one of Bedrock's."""
    if not isinstance(value, dict):
        return False
    return "type" in value or (len(value) == 1 and not value.keys() - BEDROCK_PARTS)


def _untyped_part(part: Fields) -> Fields:
    """Return a part of Bedrock's Converse API: its only key is its type."""
    [key, value] = next(iter(part.items())) if len(part) == 1 else ("", None)
    if key == "text" and isinstance(value, str):
        return text_part(value)
    if key == "toolUse" and isinstance(value, dict):
        return request_part(value.get("toolUseId"), value.get("name"), value.get("input"))
    if key == "toolResult" and isinstance(value, dict):
        content = value.get("content")
        return result_part(str(value.get("toolUseId") or ""), _plain_text(content) or content)
    if key == "reasoningContent" and isinstance(value, dict):
        reasoning = value.get("reasoningText")
        text = reasoning.get("text") if isinstance(reasoning, dict) else None
        return {"type": "reasoning", "content": str(text or "")}
    return part


def _plain_text(content: Any) -> str | None:
    """Return the text of parts that are all text; None where one is not."""
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    return "\n".join(map(str, texts)) if texts and None not in texts else None


def tool_call_part(call: Fields) -> Fields:
    """Return the part for one tool request of OpenAI, LangChain, Anthropic or the AI SDK."""
    function = call.get("function")
    inner = function if isinstance(function, dict) else call
    arguments = (inner[key] for key in ("arguments", "args", "input") if key in inner)
    name = inner.get("name") or call.get("toolName")
    return request_part(call.get("id") or call.get("toolCallId"), name, next(arguments, None))
