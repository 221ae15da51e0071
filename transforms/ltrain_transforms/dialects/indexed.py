"""Read lists that were flattened into attribute names: `prefix.0.role`, `prefix.1.role`, ..."""

from collections.abc import Iterable

from ltrain_transforms.dialects.attribute_messages import AttributeMessages
from ltrain_transforms.traces import (
    Fields,
    Span,
    new_message,
    parse_index,
    request_part,
    result_part,
    text_part,
)

ITEM_ID = "fc_"
"""The beginning of the ids of items in the Responses API. traceloop writes them for those of tool
calls, which results and tools name."""


def indices(span: Span, prefix: str) -> list[int]:
    """Return the N of every `prefix.N.…`; an attribute limit may have removed some."""
    dotted, start = prefix + ".", len(prefix) + 1
    if "\n" + dotted not in span.attribute_names:
        return []
    within = [name for name in span.attributes if name.startswith(dotted)]
    numbers = {name[start:].split(".", 1)[0] for name in within}
    return sorted(number for number in map(parse_index, numbers) if number is not None)


def read_tool_call(span: Span, prefix: str, name: str, arguments: str) -> Fields:
    """Read one tool request; `name` and `arguments` are the last parts of its attributes."""
    id, *fields = (span.get(f"{prefix}.{field}") for field in ("id", name, arguments))
    return request_part(None if id and id.startswith(ITEM_ID) else id, *fields)


def build_message(
    role: str | None,
    text: str | None,
    calls: list[Fields],
    tool_call_id: str | None,
    reasoning: Iterable[Fields] = (),
) -> Fields:
    """Return a message; one with a `tool_call_id` is the result of that tool call."""
    if tool_call_id:
        return new_message(role or "tool", [*reasoning, result_part(tool_call_id, text)])
    texts = [text_part(text)] if text else []
    return new_message(role or "user", [*reasoning, *texts, *calls])


def flattened_messages(span: Span, prefix: str) -> AttributeMessages | None:
    """Return the messages `prefix.N.{role,content,tool_calls.K.*}` of older traceloop releases."""
    return AttributeMessages.from_list(
        prefix, [_message(span, f"{prefix}.{n}") for n in indices(span, prefix)]
    )


def _message(span: Span, prefix: str) -> Fields:
    calls = [
        read_tool_call(span, f"{prefix}.tool_calls.{k}", "name", "arguments")
        for k in indices(span, f"{prefix}.tool_calls")
    ]
    role, text = span.get(f"{prefix}.role"), span.get(f"{prefix}.content")
    return build_message(role, text, calls, span.get(f"{prefix}.tool_call_id"))
