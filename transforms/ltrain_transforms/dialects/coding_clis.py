"""Coding CLIs: the spans that the store makes of their log records, and Claude Code's own spans.

Of a record, `gen_ai` reads the attributes of the conventions, which the store adds
(`client_events`); here are the texts.
"""

from collections.abc import Iterator
from typing import Any

from ltrain_instrument.attributes import LOG_EVENT
from ltrain_transforms.dialects import gen_ai
from ltrain_transforms.dialects.attribute_messages import AttributeMessages
from ltrain_transforms.dialects.partial import Dialect, Kind, Partial, non_empty
from ltrain_transforms.traces import (
    Fields,
    Span,
    new_message,
    parse_json,
    request_part,
    text_part,
)

CLAUDE_CODE = "claude-code"
"""The name of its agent; a sub-agent has an id, and no name."""
CODEX_ROOT = "/root"
"""The agent of each tool by Codex, also of a sub-agent's tools; a model's call has no agent."""
SPANS: dict[str, Kind] = {
    "claude_code.interaction": "agent",
    "claude_code.llm_request": "llm",
    "claude_code.tool": "tool",
    "claude_code.tool.execution": "tool",
}
"""Claude Code's spans that are calls; its others are steps of these. A tool is two spans, and the
inner one knows whether it failed."""
REDACTED = "<REDACTED>"


def _read(span: Span) -> Partial:
    """Return the fields of a log record, or of a span of Claude Code."""
    return _record(span) if LOG_EVENT in span.attributes else _claude_code(span)


def _record(span: Span) -> Partial:
    operation = span.get("gen_ai.operation.name")
    if span.get("agent_name") == CODEX_ROOT:
        return {"agent": None}
    if operation == "invoke_agent":
        return non_empty(input=_text(span, "prompt"))
    answer = _text(span, "response_text", "response") if operation == "chat" else None
    if answer is None:
        return {}
    parts = list(_gemini_parts(parse_json(answer)))
    message = new_message("assistant", parts or [text_part(answer)])
    messages = AttributeMessages.from_list("response_text", [message])
    return non_empty(output_messages=messages, excerpt=not parts or None)


def _gemini_parts(chunks: Any) -> Iterator[Fields]:
    """Yield the parts of an answer of Gemini's API, which Gemini CLI writes as it came."""
    for chunk in chunks if isinstance(chunks, list) else ():
        candidates = chunk.get("candidates") if isinstance(chunk, dict) else None
        for candidate in candidates if isinstance(candidates, list) else ():
            for part in candidate["content"]["parts"]:
                call = part.get("functionCall")
                if call is not None:
                    yield request_part(call.get("id"), call.get("name"), call.get("args"))
                elif part.get("text"):
                    yield text_part(part["text"])


def _claude_code(span: Span) -> Partial:
    """Return the fields of a span as Claude Code 2 writes it (beta)."""
    kind = SPANS.get(span.name)
    failed = span.get("success") == "false" or None
    partial = non_empty(kind=kind, status=failed and "error")
    if kind == "agent":
        return partial | non_empty(agent=CLAUDE_CODE, input=_text(span, "user_prompt"))
    if kind == "tool":
        return partial | non_empty(
            name=span.get("tool_name"),
            tool_call_id=span.get("tool_use_id"),
            arguments=_after_heading(span, "tool_input") or span.get("full_command", "file_path"),
            output=_tool_output(span),
        )
    if kind == "llm":
        return (
            gen_ai.missing_llm_fields(span)
            | partial
            | non_empty(
                model=span.get("model"),
                input_tokens=span.integer("input_tokens"),
                output_tokens=span.integer("output_tokens"),
                cached_tokens=span.integer("cache_read_tokens"),
                response_id=span.get("request_id"),
                finish_reason=span.get("stop_reason"),
                output_messages=_answer(span),
                excerpt="response.model_output" in span.attributes or None,
            )
        )
    return {}


def _answer(span: Span) -> AttributeMessages | None:
    text = _text(span, "response.model_output")
    messages = [new_message("assistant", [text_part(text)])] if text else []
    return AttributeMessages.from_list("response.model_output", messages)


def _tool_output(span: Span) -> str | None:
    """Return a tool's output: of the event `tool.output`, else of the detailed traces."""
    outputs = (values.get("output") for name, values in span.events if name == "tool.output")
    return next((text for text in outputs if text), None) or _after_heading(span, "new_context")


def _after_heading(span: Span, name: str) -> str | None:
    """Return a text of the detailed traces without its first line, `[TOOL INPUT: Bash]`."""
    return (span.get(name) or "").partition("\n")[2] or None


def _text(span: Span, *names: str) -> str | None:
    """Return a text that the client did not remove."""
    text = span.get(*names)
    return None if text in ("", REDACTED, "[REDACTED]") else text


DIALECT = Dialect(
    "coding_clis",
    (f"\n{LOG_EVENT}", "\nspan.type"),
    _read,
    written_by="Qwen Code, Gemini CLI, Codex, Claude Code: [log "
    "records](#log-records-of-coding-clis); Claude Code's spans (beta)",
    read_from="`gen_ai.*` as the store adds them, `prompt`, `response_text`; `claude_code.*`",
    kinds="llm, tool, agent (a user's prompt)",
    messages="the text of the answer",
    tokens="counts",
    missing="messages in, requested tools",
)
