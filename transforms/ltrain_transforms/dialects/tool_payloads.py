"""A tool's arguments and result without the envelopes that frameworks put around them.

A tool may fail although its span has no error status: LangChain's ToolMessage, which is serialised
in two ways, and MCP's `isError` say so, and the `status` in results of google-adk and strands.
"""

import json
from functools import lru_cache
from typing import Any

from ltrain_transforms.dialects.partial import Partial, as_text, non_empty
from ltrain_transforms.traces import parse_json

ENVELOPE = '"input_str"'
"""A key of LangChain's callback payload, which traceloop writes unchanged."""


def unwrap_arguments(text: str | None) -> str | None:
    """Return the arguments of a tool: the JSON inside an envelope, else the text unchanged."""
    return text if text is None or ENVELOPE not in text else _unwrap(text)


@lru_cache(maxsize=256)  # traceloop writes the same payload twice
def _unwrap(text: str) -> str:
    payload: Any = parse_json(text)
    if not isinstance(payload, dict) or "input_str" not in payload:
        return text
    inputs = payload.get("inputs")
    if isinstance(inputs, dict) and inputs:
        return json.dumps(inputs, ensure_ascii=False)
    return str(payload["input_str"])


def unwrap_call(text: str | None) -> str | None:
    """Return the keyword arguments of `{"args": [], "kwargs": {...}}`, else the text unchanged."""
    call: Any = parse_json(text)
    is_call = isinstance(call, dict) and call.keys() == {"args", "kwargs"}
    return json.dumps(call["kwargs"], ensure_ascii=False) if is_call and not call["args"] else text


STATUS_SCOPES = (
    "gcp.vertex.agent",
    "openinference.instrumentation.google_adk",
    "strands.telemetry.tracer",
    "openinference.instrumentation.strands_agents",
)
"""Instrumentations of frameworks whose tools fail by `{"status": "error"}`. In the result of
another tool that may be its subject: the status of a build, or of an order."""


def parse_tool_result(text: str | None, scope: str = "") -> Partial:
    """Return output, tool_call_id and status of a tool's result.

    Args:
        scope: the instrumentation that recorded it.
    """
    value = parse_json(text)
    message = _tool_message(value)
    if message is not None:
        return non_empty(
            output=_content_text(message.get("content")),
            tool_call_id=as_text(message.get("tool_call_id")),
            status="error" if message.get("status") == "error" else None,
        )
    failed = isinstance(value, dict) and (
        value.get("isError")
        or value.get("is_error")
        or (scope in STATUS_SCOPES and value.get("status") == "error")
    )
    return non_empty(output=text, status="error" if failed else None)


def join_blocks(text: str | None) -> str | None:
    """Return the text of a result's content blocks, `[{"text": …}]`; another result unchanged."""
    blocks: Any = parse_json(text)
    if not isinstance(blocks, list) or not blocks:
        return text
    plain = all(isinstance(one, dict) and one.keys() == {"text"} for one in blocks)
    return "".join(str(one["text"]) for one in blocks) if plain else text


def _tool_message(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    if "output" in value and len(value) <= 2:  # traceloop: {"output": message, "kwargs": {...}}
        return _tool_message(parse_json(value["output"]))
    for key in ("data", "kwargs"):  # messages_to_dict, and LangChain's `lc` constructor form
        inner = value.get(key)
        if isinstance(inner, dict) and "tool_call_id" in inner:
            return inner
    return value if "tool_call_id" in value and "content" in value else None


def _content_text(content: Any) -> str | None:
    if isinstance(content, list):
        parts = (part.get("text", "") if isinstance(part, dict) else str(part) for part in content)
        return "".join(parts)
    return None if content is None else str(content)
