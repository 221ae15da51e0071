"""Read lists that were flattened into attribute names: `prefix.0.role`, `prefix.1.role`, ..."""

from typing import Any

from ltrain_transforms.dialects.messages import Message, Messages
from ltrain_transforms.traces import Span, parse_index, parse_json


def indices(span: Span, prefix: str) -> list[int]:
    """Return the N of every `prefix.N.…`; an attribute limit may have removed some."""
    dotted, start = prefix + ".", len(prefix) + 1
    if "\n" + dotted not in span.attribute_names:
        return []
    within = [name for name in span.attributes if name.startswith(dotted)]
    numbers = {name[start:].split(".", 1)[0] for name in within}
    return sorted(number for number in map(parse_index, numbers) if number is not None)


def read_tool_call(span: Span, prefix: str, name: str, arguments: str) -> dict[str, Any]:
    """Read one tool request; `name` and `arguments` are the last parts of its attributes."""
    return {
        "type": "tool_call",
        "id": span.get(f"{prefix}.id"),
        "name": span.get(f"{prefix}.{name}"),
        "arguments": parse_json(span.get(f"{prefix}.{arguments}")),
    }


def build_message(
    role: str | None, text: str | None, calls: list[dict[str, Any]], tool_call_id: str | None
) -> Message:
    """Return a message; one with a `tool_call_id` is the result of that tool call."""
    if tool_call_id:
        part = {"type": "tool_call_response", "id": tool_call_id, "response": text or ""}
        return {"role": role or "tool", "parts": [part]}
    texts = [{"type": "text", "content": text}] if text else []
    return {"role": role or "user", "parts": [*texts, *calls]}


def flattened_messages(span: Span, prefix: str) -> Messages | None:
    """Return the messages `prefix.N.{role,content,tool_calls.K.*}` of older traceloop releases."""
    return Messages.from_list(
        prefix, [_message(span, f"{prefix}.{n}") for n in indices(span, prefix)]
    )


def _message(span: Span, prefix: str) -> Message:
    calls = [
        read_tool_call(span, f"{prefix}.tool_calls.{k}", "name", "arguments")
        for k in indices(span, f"{prefix}.tool_calls")
    ]
    role, text = span.get(f"{prefix}.role"), span.get(f"{prefix}.content")
    return build_message(role, text, calls, span.get(f"{prefix}.tool_call_id"))
