"""Vercel's AI SDK: `ai.*`, as `experimental_telemetry` writes it.

The attribute names are those of ai 5 and 6 (`generate-text.ts`, `stream-text.ts`, and the tool span
`ai.toolCall`); the `promptTokens`, `completionTokens` and tool `args` of ai 4 are read too.
"""

from typing import Any

from ltrain_transforms.dialects import chat, gen_ai
from ltrain_transforms.dialects.attribute_messages import AttributeMessages
from ltrain_transforms.dialects.partial import Dialect, Kind, Partial, non_empty
from ltrain_transforms.traces import Fields, Span, new_message, text_part

CALLS = (".doGenerate", ".doStream")
"""Suffixes of operations that call a model once; the loop around them counts as an agent."""
LOOPS = ("ai.generateText", "ai.streamText", "ai.generateObject", "ai.streamObject")


def _read(span: Span) -> Partial:
    """Return the fields of `ai.*`."""
    operation = span.get("ai.operationId") or ""
    kind = _kind(operation)
    partial = non_empty(kind=kind)
    if kind == "llm":
        return {**partial, **_llm(span)}
    if kind == "tool":
        return partial | non_empty(
            name=span.get("ai.toolCall.name"),
            tool_call_id=span.get("ai.toolCall.id"),
            arguments=span.get("ai.toolCall.args"),
            output=span.get("ai.toolCall.result"),
        )
    if kind == "embedding":
        partial |= non_empty(input_tokens=span.integer("ai.usage.tokens"))
    return partial | non_empty(
        agent=span.get("ai.telemetry.functionId", "resource.name") if kind == "agent" else None,
        model=span.get("ai.model.id"),
        input=span.get("ai.prompt", "ai.value", "ai.values"),
        output=span.get("ai.response.text", "ai.response.object", "ai.response.toolCalls"),
    )


def _kind(operation: str) -> Kind | None:
    if operation == "ai.toolCall":
        return "tool"
    if operation.startswith("ai.embed"):
        return "embedding" if operation.endswith(".doEmbed") else None
    if operation.endswith(CALLS):
        return "llm"
    return "agent" if operation in LOOPS else None


def _llm(span: Span) -> Partial:
    prompt = span.get("ai.prompt.messages")
    return gen_ai.missing_llm_fields(span) | non_empty(
        model=span.get("ai.response.model", "ai.model.id"),
        input_messages=chat.chat_messages("ai.prompt.messages", prompt, "user"),
        output_messages=AttributeMessages.from_list("ai.response.text", _answer(span)),
        finish_reason=_finish(span),
        input_tokens=span.integer("ai.usage.inputTokens", "ai.usage.promptTokens"),
        output_tokens=span.integer("ai.usage.outputTokens", "ai.usage.completionTokens"),
        reasoning_tokens=span.integer("ai.usage.reasoningTokens"),
        cached_tokens=span.integer("ai.usage.cachedInputTokens"),
        response_id=span.get("ai.response.id"),
    )


def _answer(span: Span) -> list[Fields]:
    """Return the answer as one message: its text or object, and its tool requests."""
    text = span.get("ai.response.text", "ai.response.object")
    calls: Any = span.json("ai.response.toolCalls")
    parts = [text_part(text)] if text else []
    if isinstance(calls, list):
        parts += [chat.tool_call_part(call) for call in calls if isinstance(call, dict)]
    return [new_message("assistant", parts)] if parts else []


def _finish(span: Span) -> str | None:
    """Return the finish reason with the usual spelling, `tool_calls` for `tool-calls`."""
    reason = span.get("ai.response.finishReason")
    reason = reason or gen_ai.finish_reason(span.get("gen_ai.response.finish_reasons") or "")
    return reason.replace("-", "_") if reason else None


DIALECT = Dialect(
    "vercel",
    ("\nai.operationId",),
    _read,
    written_by="AI SDK 4-6 (`experimental_telemetry`)",
    read_from="`ai.operationId`, `ai.prompt.messages`, `ai.response.*`, `ai.toolCall.*`, "
    "`ai.usage.*`",
    kinds="llm, tool, embedding, agent (the loop)",
    messages="the SDK's parts",
    tokens="counts",
    missing="node",
)
