"""Messages in log records: OpenTelemetry's gen_ai events.

One record a message, as opentelemetry-instrumentation-openai-v2 writes them, or one of all, as the
semantic conventions have it since 1.37.
"""

from typing import Any

from ltrain_transforms.dialects.chat import iter_messages
from ltrain_transforms.dialects.messages import Message, Messages
from ltrain_transforms.dialects.partial import Partial, as_text, non_empty
from ltrain_transforms.spans import Log, Span
from ltrain_transforms.untrusted import parse_json

CHOICE = "gen_ai.choice"
DETAILS = "gen_ai.client.inference.operation.details"


def read(span: Span) -> Partial:
    """Say what the log records of a span say."""
    asked: list[Message] = []
    reason: str | None = None
    answered: list[Message] = []
    for log in (log for log in span.logs if log.in_span):
        if log.name == DETAILS:
            asked += _listed(log, "gen_ai.system_instructions")
            asked += _listed(log, "gen_ai.input.messages")
            answered += _listed(log, "gen_ai.output.messages")
        elif log.name == CHOICE:
            body = parse_json(log.body)
            answered += iter_messages(body, "assistant")
            reason = reason or as_text(
                body.get("finish_reason") if isinstance(body, dict) else None
            )
        elif log.name.startswith("gen_ai.") and log.name.endswith(".message"):
            asked += _message(log)
    return non_empty(
        input_messages=Messages.of("gen_ai.*.message", asked),
        output_messages=Messages.of(CHOICE, answered),
        finish_reason=reason,
    )


def _message(log: Log) -> list[Message]:
    """Read `gen_ai.user.message` and its like: the role is in the name, where the body has none."""
    role, body = log.name.split(".")[1], parse_json(log.body)
    if role == "tool" and isinstance(body, dict) and "id" in body:
        body = {**body, "tool_call_id": body["id"]}
    return list(iter_messages(body, role))


def _listed(log: Log, name: str) -> list[Message]:
    given: Any = parse_json(log.attributes.get(name))
    if name == "gen_ai.system_instructions" and isinstance(given, list):
        return [{"role": "system", "parts": given}]
    return [one for one in given if isinstance(one, dict)] if isinstance(given, list) else []
