"""Lists that were flattened into attribute names: `prefix.0.role`, `prefix.1.role`, ..."""

from typing import Any

from ltrain_transforms.dialects.messages import Message, Messages
from ltrain_transforms.spans import Span
from ltrain_transforms.untrusted import parse_index, parse_json


def indices(span: Span, prefix: str) -> list[int]:
    """Give the N of every `prefix.N.…`; early ones may be lost to an attribute limit."""
    dotted, start = prefix + ".", len(prefix) + 1
    if "\n" + dotted not in span.attribute_names:
        return []
    within = [name for name in span.attributes if name.startswith(dotted)]
    numbers = {name[start:].split(".", 1)[0] for name in within}
    return sorted(number for number in map(parse_index, numbers) if number is not None)


def read_tool_call(span: Span, at: str, name: str, arguments: str) -> dict[str, Any]:
    """Read one request for a tool; `name` and `arguments` are its attributes' last parts."""
    return {
        "type": "tool_call",
        "id": span.get(f"{at}.id"),
        "name": span.get(f"{at}.{name}"),
        "arguments": parse_json(span.get(f"{at}.{arguments}")),
    }


def build_message(
    role: str | None, text: str | None, calls: list[dict[str, Any]], answers: str | None
) -> Message:
    """Put a message together; `answers` is the id of the tool call that it is the result of."""
    if answers:
        part = {"type": "tool_call_response", "id": answers, "response": text or ""}
        return {"role": role or "tool", "parts": [part]}
    texts = [{"type": "text", "content": text}] if text else []
    return {"role": role or "user", "parts": [*texts, *calls]}


def flattened_messages(span: Span, prefix: str) -> Messages | None:
    """Give the messages `prefix.N.{role,content,tool_calls.K.*}` of traceloop's older releases."""
    return Messages.of(prefix, [_flat(span, f"{prefix}.{n}") for n in indices(span, prefix)])


def _flat(span: Span, at: str) -> Message:
    calls = [
        read_tool_call(span, f"{at}.tool_calls.{k}", "name", "arguments")
        for k in indices(span, f"{at}.tool_calls")
    ]
    role, text = span.get(f"{at}.role"), span.get(f"{at}.content")
    return build_message(role, text, calls, span.get(f"{at}.tool_call_id"))
