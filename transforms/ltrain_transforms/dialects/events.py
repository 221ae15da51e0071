"""Messages in log records: OpenTelemetry's gen_ai events.

opentelemetry-instrumentation-openai-v2 writes one record for each message; the semantic conventions
have one record for all messages since 1.37.
"""

from typing import Any

from ltrain_transforms.dialects.attribute_messages import AttributeMessages
from ltrain_transforms.dialects.chat import iter_messages
from ltrain_transforms.dialects.partial import Dialect, Partial, as_text, non_empty
from ltrain_transforms.traces import Fields, Log, Span, new_message, parse_json

CHOICE = "gen_ai.choice"
DETAILS = "gen_ai.client.inference.operation.details"


def _read(span: Span) -> Partial:
    """Return the messages in the log records of a span."""
    prompt: list[Fields] = []
    reason: str | None = None
    answer: list[Fields] = []
    for log in (log for log in span.logs if log.in_span):
        if log.name == DETAILS:
            prompt += _attribute_messages(log, "gen_ai.system_instructions")
            prompt += _attribute_messages(log, "gen_ai.input.messages")
            answer += _attribute_messages(log, "gen_ai.output.messages")
        elif log.name == CHOICE:
            body = parse_json(log.body)
            answer += iter_messages(body, "assistant")
            reason = reason or as_text(
                body.get("finish_reason") if isinstance(body, dict) else None
            )
        elif log.name.startswith("gen_ai.") and log.name.endswith(".message"):
            prompt += _message(log)
    return non_empty(
        input_messages=AttributeMessages.from_list("gen_ai.*.message", prompt),
        output_messages=AttributeMessages.from_list(CHOICE, answer),
        finish_reason=reason,
    )


def _message(log: Log) -> list[Fields]:
    """Read `gen_ai.user.message` and similar: the name has the role that the body may lack."""
    role, body = log.name.split(".")[1], parse_json(log.body)
    if role == "tool" and isinstance(body, dict) and "id" in body:
        body = {**body, "tool_call_id": body["id"]}
    return list(iter_messages(body, role))


def _attribute_messages(log: Log, name: str) -> list[Fields]:
    parsed: Any = parse_json(log.attributes.get(name))
    if name == "gen_ai.system_instructions" and isinstance(parsed, list):
        return [new_message("system", parsed)]
    return [one for one in parsed if isinstance(one, dict)] if isinstance(parsed, list) else []


DIALECT = Dialect(
    "events",
    (),
    _read,
    written_by="opentelemetry-instrumentation-openai-v2, util-genai",
    read_from="log records `gen_ai.*.message`, `gen_ai.choice`, "
    "`gen_ai.client.inference.operation.details`",
    kinds="none: the span has it",
    messages="one record for each message, or one for all",
)
