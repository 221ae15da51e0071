"""Messages in log records and in events of spans: OpenTelemetry's gen_ai events.

opentelemetry-instrumentation-openai-v2 writes one record for each message; the semantic conventions
have one record for all messages since 1.37. Some SDKs write the same as events of the span:
strands-agents, Azure's AI inference, and instrumentors of the conventions before 1.28.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ltrain_transforms.dialects.agent_runs import STRANDS
from ltrain_transforms.dialects.attribute_messages import AttributeMessages
from ltrain_transforms.dialects.chat import is_part, iter_messages
from ltrain_transforms.dialects.partial import Dialect, Partial, as_text, non_empty
from ltrain_transforms.dialects.tool_payloads import join_blocks
from ltrain_transforms.traces import (
    Fields,
    Span,
    messages_text,
    new_message,
    parse_json,
    read_messages,
    to_text,
    tool_requests,
)

CHOICE = "gen_ai.choice"
DETAILS = "gen_ai.client.inference.operation.details"
MESSAGE_KEYS = frozenset({"role", "content", "parts", "tool_calls"})
"""A JSON object with one of these is a message; another is a text."""
PROMPT_CONTENT, COMPLETION_CONTENT = "gen_ai.content.prompt", "gen_ai.content.completion"
"""The events of the conventions before 1.28."""
AGENTS = ("invoke_agent", "invoke_workflow")
"""Operations whose messages are an agent's input and output."""


class _Record(NamedTuple):
    """A log record, or an event of a span."""

    name: str
    body: Any
    attributes: Mapping[str, str]


class _Exchange(NamedTuple):
    """The messages of one span."""

    prompt: list[Fields]
    answer: list[Fields]
    finish_reason: str | None


def _read(span: Span) -> Partial:
    """Return the messages in the log records of a span; without any, those in its events."""
    logs = [log for log in span.logs if log.in_span]
    exchange = _exchange(_Record(log.name, parse_json(log.body), log.attributes) for log in logs)
    if not exchange.prompt and not exchange.answer and has_messages(span):
        exchange = _exchange(_Record(*_event(name, values)) for name, values in span.events)
    prompt, answer, reason = exchange
    partial = non_empty(
        input_messages=AttributeMessages.from_list("gen_ai.*.message", prompt),
        output_messages=AttributeMessages.from_list(CHOICE, answer),
        finish_reason=reason,
    )
    operation = span.get("gen_ai.operation.name")
    if operation == "execute_tool":
        return _tool(span, prompt, answer)
    return _text(span, prompt, answer) if operation in AGENTS else partial


def has_messages(span: Span) -> bool:
    """Return whether an event of the span may hold messages."""
    return '"gen_ai.' in span.events_text


def _exchange(records: Iterator[_Record]) -> _Exchange:
    prompt: list[Fields] = []
    answer: list[Fields] = []
    reason: str | None = None
    for record in records:
        name, body, attributes = record
        if name == DETAILS:
            prompt += _attribute_messages(attributes, "gen_ai.system_instructions")
            prompt += _attribute_messages(attributes, "gen_ai.input.messages")
            answer += _attribute_messages(attributes, "gen_ai.output.messages")
        elif name == CHOICE:
            answer += iter_messages(body, "assistant")
            reason = reason or as_text(
                body.get("finish_reason") if isinstance(body, dict) else None
            )
        elif name == PROMPT_CONTENT:
            prompt += iter_messages(parse_json(attributes.get("gen_ai.prompt")), "user")
        elif name == COMPLETION_CONTENT:
            answer += iter_messages(parse_json(attributes.get("gen_ai.completion")), "assistant")
        elif name.startswith("gen_ai.") and name.endswith(".message"):
            prompt += _message(name, body)
    return _Exchange(prompt, answer, reason)


def _event(name: str, values: Mapping[str, str]) -> _Record:
    """Return an event of a span as a record: its attributes are the fields of the body."""
    body: Any = parse_json(values.get("gen_ai.event.content"))
    if not isinstance(body, dict):
        body = dict(values)
        if "content" in body:
            body["content"] = _content(body["content"], list)
        if "message" in body:
            body["message"] = _content(body["message"], list, dict)
        if isinstance(body.get("message"), list | str):
            body["message"] = {"role": "assistant", "content": body["message"]}
        if "tool_calls" in body:
            body["tool_calls"] = parse_json(body["tool_calls"])
    return _Record(name, body, values)


def _content(text: str, *kinds: type) -> Any:
    """Return the parts of a message, or the message, that `text` holds as JSON; else the text."""
    value: Any = parse_json(text)
    if isinstance(value, list) and list in kinds and all(map(is_part, value)):
        return value
    if isinstance(value, dict) and dict in kinds and value.keys() & MESSAGE_KEYS:
        return value
    return text


def _message(name: str, body: Any) -> list[Fields]:
    """Read `gen_ai.user.message` and similar: the name has the role that the body may lack."""
    role = name.split(".")[1]
    if role == "tool" and isinstance(body, dict) and "id" in body:
        body = {**body, "tool_call_id": body["id"]}
    return list(iter_messages(body, role))


def _attribute_messages(attributes: Mapping[str, str], name: str) -> list[Fields]:
    parsed: Any = parse_json(attributes.get(name))
    if name == "gen_ai.system_instructions" and isinstance(parsed, list):
        return [new_message("system", parsed)]
    return [one for one in parsed if isinstance(one, dict)] if isinstance(parsed, list) else []


def _tool(span: Span, prompt: list[Fields], answer: list[Fields]) -> Partial:
    """Return a tool's arguments and result, which its events hold as messages."""
    inputs, outputs = read_messages(prompt), read_messages(answer)
    requests = [request.arguments for request in tool_requests(inputs)]
    requests += [result.value for message in inputs for result in message.tool_results]
    results = [result.text for message in outputs for result in message.tool_results]
    if span.scope == STRANDS:
        results = [join_blocks(result) or "" for result in results]
    arguments = requests[0] if requests else messages_text(inputs)
    return non_empty(
        arguments=to_text(arguments) if arguments else None,
        output="".join(results) or messages_text(outputs),
    )


def _text(span: Span, prompt: list[Fields], answer: list[Fields]) -> Partial:
    """Return the user's last text as an agent's input, and its answer as the output."""
    questions = [one.text for one in read_messages(prompt) if one.role == "user" and one.text]
    output = messages_text(read_messages(answer))
    if output and span.scope == STRANDS:  # its answers print themselves as lines
        output = output.removesuffix("\n")
    return non_empty(input=questions[-1] if questions else None, output=output)


DIALECT = Dialect(
    "events",
    (),
    _read,
    written_by="opentelemetry-instrumentation-openai-v2, util-genai, strands-agents, Azure's AI "
    "inference",
    read_from="log records and events of spans: `gen_ai.*.message`, `gen_ai.choice`, "
    "`gen_ai.client.inference.operation.details`, `gen_ai.content.prompt` and `.completion`",
    kinds="none: the span has it",
    messages="one record for each message, or one for all",
)
