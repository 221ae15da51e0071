"""Messages as SDKs and frameworks write them -> messages as the gen_ai conventions have them.

Read are OpenAI's requests, responses and messages, LangChain's serialised ones, Anthropic's and the
AI SDK's content parts, and plain text. What is none of these gives no message.
"""

from collections.abc import Iterator
from typing import Any

from ltrain_transforms.dialects.messages import Message, Messages
from ltrain_transforms.untrusted import parse_json

Part = dict[str, Any]

ROLES = {"human": "user", "ai": "assistant", "chat": "user", "developer": "system"}
"""LangChain's names of roles, and OpenAI's newer one."""
MESSAGE_KEYS = ("messages", "choices", "generations", "message", "prompts", "kwargs", "data")
"""Keys under which requests, responses and envelopes hold their messages, in order."""


def chat_messages(attribute: str, text: str | None, role: str) -> Messages | None:
    """Hold what an attribute says as messages; `role` is whose plain text is."""
    return Messages.of(attribute, list(iter_messages(parse_json(text), role))) if text else None


def iter_messages(given: Any, role: str) -> Iterator[Message]:
    """Give every message in `given`; `role` is the one of those that name none."""
    if isinstance(given, str) and given:
        yield {"role": role, "parts": [_text(given)]}
    elif isinstance(given, list):
        for one in given:
            yield from iter_messages(one, role)
    elif isinstance(given, dict):
        yield from _of_object(given, role)


def _of_object(given: dict[str, Any], role: str) -> Iterator[Message]:
    if isinstance(given.get("parts"), list):
        yield given
        return
    role = _role(given) or role
    if "content" in given or given.get("tool_calls"):
        parts = list(_parts(given))
        if parts:
            yield {"role": role, "parts": parts}
        return
    inside = next((given[key] for key in MESSAGE_KEYS if given.get(key)), None)
    for message in iter_messages(inside, role):
        reason = given.get("finish_reason")
        yield {**message, "finish_reason": reason} if reason else message


def _role(given: dict[str, Any]) -> str | None:
    """Give the role: its own, or the one that LangChain's type or class says."""
    said = given.get("role") or given.get("type")
    if said == "constructor" and isinstance(given.get("id"), list) and given["id"]:
        said = str(given["id"][-1]).removesuffix("Chunk").removesuffix("Message").lower()
    known = isinstance(said, str) and said not in ("message", "function", "not_implemented")
    return ROLES.get(said, said) if known else None  # type: ignore[arg-type]


def _parts(message: dict[str, Any]) -> Iterator[Part]:
    content, answered = message.get("content"), message.get("tool_call_id")
    if answered:
        yield _answer(str(answered), content)
        return
    inside = content if isinstance(content, list) else [content]
    for one in inside:
        if isinstance(one, str) and one:
            yield _text(one)
        elif isinstance(one, dict):
            yield _part(one)
    # Anthropic's requests stand in the content, and LangChain repeats them beside it
    named = [part["id"] for part in inside if isinstance(part, dict) and part.get("id")]
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict) and call.get("id") not in named:
            yield tool_call_part(call)


def _part(part: Part) -> Part:
    kind = part.get("type")
    if kind in ("tool-call", "tool_use"):
        return tool_call_part(part)
    if kind in ("tool-result", "tool_result"):
        output = part.get("output", part.get("result", part.get("content")))
        if isinstance(output, dict) and "value" in output:  # the AI SDK's {type, value}
            output = output["value"]
        return _answer(str(part.get("toolCallId") or part.get("tool_use_id") or ""), output)
    if kind in ("text", "input_text", "output_text"):
        return _text(str(part.get("text") or part.get("content") or ""))
    return part


def tool_call_part(call: dict[str, Any]) -> Part:
    """Read one request for a tool: OpenAI's, LangChain's, Anthropic's or the AI SDK's."""
    function = call.get("function")
    inner = function if isinstance(function, dict) else call
    given = (inner[key] for key in ("arguments", "args", "input") if key in inner)
    return {
        "type": "tool_call",
        "id": call.get("id") or call.get("toolCallId"),
        "name": inner.get("name") or call.get("toolName"),
        "arguments": parse_json(next(given, None)),
    }


def _answer(call_id: str, response: Any) -> Part:
    return {"type": "tool_call_response", "id": call_id, "response": response or ""}


def _text(text: str) -> Part:
    return {"type": "text", "content": text}
