"""Logfire: its instrumentors of model SDKs and of the OpenAI Agents SDK.

The attribute names are those of logfire 5.4. Its instrumentors of SDKs write `gen_ai.*`, and whole
requests and responses where they use version 1, the default before logfire 5. That of the Agents
SDK writes the SDK's own spans; their kinds are in the templates of their messages.
"""

from typing import Any

from ltrain_transforms.dialects import chat, gen_ai
from ltrain_transforms.dialects.attribute_messages import AttributeMessages
from ltrain_transforms.dialects.partial import Dialect, Kind, Partial, non_empty
from ltrain_transforms.dialects.platforms import payloads
from ltrain_transforms.dialects.tool_payloads import parse_tool_result
from ltrain_transforms.traces import Span

AGENTS_SDK = "logfire.openai_agents"
"""The scope of the Agents SDK's spans."""
KINDS: dict[str, Kind] = {
    "Chat completion with": "llm",
    "Responses API": "llm",
    "Function:": "tool",
    "Handoff:": "tool",
    "Agent run:": "agent",
}
"""By the beginning of a template: kinds of the Agents SDK's spans; turns and tasks are not calls.
"""
CHOICE = "gen_ai.choice"
"""The event of an answer; the other events are messages of the request."""


def _read(span: Span) -> Partial:
    """Return the fields of `request_data` and `events`, and of spans of the Agents SDK."""
    if span.scope == AGENTS_SDK:
        return _agents_sdk(span)
    if "messages" in payloads.as_object(span.json("request_data")):
        return {"kind": "llm", **_requested(span, "request_data", "response_data")}
    return _events(span)


def _agents_sdk(span: Span) -> Partial:
    template = span.get("logfire.msg_template") or ""
    kind = next((kind for start, kind in KINDS.items() if template.startswith(start)), None)
    partial = non_empty(kind=kind, status="error" if span.get("error") else None)
    if kind == "llm":
        config = payloads.sampling(payloads.as_object(span.json("model_config")))
        usage = payloads.usage_fields(span.json("usage"))
        fields: Partial = {**_requested(span, "input", "output"), **_events(span), **partial}
        return {**fields, **usage, **non_empty(params=config)}
    if kind == "tool":  # a hand-off has no name, and answers the request that no other tool answers
        fields = non_empty(name=span.get("name"), arguments=span.get("input"))
        return {**partial, **fields, **parse_tool_result(span.get("output", "to_agent"))}
    return partial | non_empty(agent=span.get("name") if kind == "agent" else None)


def _requested(span: Span, request: str, response: str) -> Partial:
    """Return the fields of an LLM call whose request and response are attributes."""
    return {
        **payloads.request_fields(span, request),
        **payloads.response_fields(span, response),
        **gen_ai.missing_llm_fields(span),
        **non_empty(model=span.get("gen_ai.response.model", "gen_ai.request.model")),
    }


def _events(span: Span) -> Partial:
    """Return the messages of a call of the Responses API: a list of the conventions' old events."""
    events: Any = span.json("events")
    values = [one for one in events if isinstance(one, dict)] if isinstance(events, list) else []
    inputs = [one for one in values if one.get("event.name") != CHOICE]
    outputs = [one for one in values if one.get("event.name") == CHOICE]
    return non_empty(
        input_messages=_messages(inputs, "user"), output_messages=_messages(outputs, "assistant")
    )


def _messages(values: list[dict[str, Any]], role: str) -> AttributeMessages | None:
    return AttributeMessages.from_list("events", list(chat.iter_messages(values, role)))


DIALECT = Dialect(
    "logfire",
    ("\nlogfire.msg_template",),
    _read,
    written_by="logfire 5, and before 5; its instrumentor of the OpenAI Agents SDK",
    read_from="`request_data`, `response_data`, `events`; of the Agents SDK "
    "`logfire.msg_template`, `name`, `input`, `output`",
    kinds="llm, tool, agent",
    messages="those of the request and the response",
    tokens="counts",
    missing="functions of `@logfire.instrument`, which have no kind",
)
