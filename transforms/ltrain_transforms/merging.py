"""One call out of the spans that describe it.

Request, response, parameters and token ids are the innermost span's (gateway or capture, then SDK,
then framework), of retries the last good one; agent, node and time are the outermost's.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ltrain_transforms.dialects.partial import Partial
from ltrain_transforms.grouping import Described, ancestors
from ltrain_transforms.spans import Span

STRUCTURE = ("agent", "node")
"""Fields where the outermost span's word counts."""


@dataclass(slots=True)
class Call:
    """A call while it is put together; `row()` gives the finished cells."""

    spans: Sequence[Described]
    """Outermost first."""
    merged: Partial
    requested_by: str | None = None
    parent_id: str | None = None
    filled: dict[str, Any] = field(default_factory=dict)
    """Cells that other calls decide."""

    @property
    def outer(self) -> Span:
        return self.spans[0].span

    @property
    def call_id(self) -> str:
        return self.outer.span_id

    @property
    def kind(self) -> str:
        return self.merged["kind"]


def merge(described: Sequence[Described]) -> Call:
    """Merge the partials of one call's spans, given outermost first."""
    merged: Partial = {}
    for one in sorted(described, key=_goodness):
        merged |= one.partial
    for one in reversed(described):
        for name in STRUCTURE:
            if name in one.partial:
                merged[name] = one.partial[name]  # type: ignore[literal-required]
    merged.pop("status", None)
    if _failed(described):
        merged["status"] = "error"
    return Call(described, merged)


def _goodness(one: Described) -> tuple[bool, bool, int, int]:
    """Sort key: what is to be believed most comes last."""
    good = one.partial.get("status") != "error"
    return one.partial.get("measured", False), good, one.span.end - one.span.start, one.span.start


def _failed(described: Sequence[Described]) -> bool:
    """Of an LLM call the outermost span decides (the SDK retried), of others any."""
    if described[0].partial["kind"] == "llm":
        return described[0].partial.get("status") == "error"
    return any(one.partial.get("status") == "error" for one in described)


def place(call: Call, enclosing: Mapping[str, Span], calls: Mapping[str, Call]) -> None:
    """Find the enclosing call, and the agent and node that `call` ran in.

    Args:
        enclosing: every span of the execution by id.
        calls: every call of the execution by the id of each of its spans.
    """
    above = [
        calls[span.span_id] for span in ancestors(call.outer, enclosing) if span.span_id in calls
    ]
    outside = [one for one in above if one is not call]
    call.parent_id = outside[0].call_id if outside else None
    merged = call.merged
    nodes = (one.merged.get("node") or one.outer.name for one in outside if one.kind == "node")
    node = merged.get("node") or next(nodes, None)
    agents = (one.merged.get("agent") for one in outside)
    agent = merged.get("agent") or next((name for name in agents if name), None) or node
    call.filled |= {"agent": agent, "node": node}


def row(call: Call) -> dict[str, Any]:
    """Give the cells of `CALLS` that one call decides."""
    merged, outer = call.merged, call.outer
    attributes = [one.span for one in call.spans]
    texts = _texts(merged)
    params = merged.get("params")
    return {
        "execution_id": outer.execution_id,
        "call_id": call.call_id,
        "trace_id": outer.trace_id,
        "parent_id": call.parent_id,
        "start": outer.start,
        "end": max(span.end for span in attributes),
        "kind": call.kind,
        "name": _name(call),
        "temperature": (params or {}).get("temperature"),
        "params": json.dumps(params, sort_keys=True) if params else None,
        "status": merged.get("status", "ok"),
        "requested_by": call.requested_by,
        "constrained": merged.get("constrained", False),
        "delivered": merged.get("delivered", True),
        "redacted": any(span.flag("ltrain.redacted") for span in attributes),
        "truncated": any(span.flag("ltrain.truncated") for span in attributes),
        "source_spans": [span.span_id for span in attributes],
        **{name: merged.get(name) for name in _AS_THEY_ARE},
        **texts,
        **call.filled,
    }


_AS_THEY_ARE = (
    *("version", "endpoint", "model", "policy", "policy_version", "tool_call_id", "error_type"),
    *("tools", "finish_reason", "input_tokens", "output_tokens"),
    *("prompt_token_ids", "response_token_ids", "response_logprobs"),
)


def _name(call: Call) -> str:
    merged = call.merged
    if call.kind == "llm":
        return merged.get("model") or call.outer.name
    if call.kind == "agent":
        return merged.get("agent") or call.outer.name
    return merged.get("name") or call.outer.name


def _texts(merged: Partial) -> dict[str, str | None]:
    """Give input and output: messages of an LLM call, arguments and result of a tool."""
    if merged["kind"] == "llm":
        messages = merged.get("input_messages"), merged.get("output_messages")
        asked, answered = (json.dumps(m, ensure_ascii=False) if m else None for m in messages)
        return {"input": asked, "output": answered, "arguments": None, "result": None}
    if merged["kind"] == "tool":
        arguments, result = merged.get("arguments"), merged.get("output")
        return {"input": arguments, "output": result, "arguments": arguments, "result": result}
    return {
        "input": merged.get("input"),
        "output": merged.get("output"),
        "arguments": None,
        "result": None,
    }
