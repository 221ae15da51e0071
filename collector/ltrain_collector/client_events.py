"""Log records of coding CLIs that become spans: Qwen Code, Gemini CLI, Codex, Claude Code.

These programs write each call of a model or a tool as a log record when it has ended. ClickHouse
makes a span of each, in the table of spans, when the record is inserted. The span has the record's
attributes, and those of OpenTelemetry's gen_ai conventions that `FIELDS` and `EVENTS` name.

* Its trace is the record's; of a record without a trace a digest of its session and its prompt.
* Its id is a digest of the record, so a record that is sent twice is one span.
* It ends at the record's time and begins `duration_ms` earlier.
* Its parent is the span in which the record was written, else the span of its prompt.

A record without a time makes no span.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ltrain_instrument import attributes

CHAT, TOOL, AGENT = "chat", "execute_tool", "invoke_agent"
"""The operations of the conventions that a record may describe."""

CREATED, CHANGED = "14_log_spans", "15_log_span_answers"
STEPS = (CREATED, CHANGED)
"""The steps of a migration that create the view, and that give an older one the query of today."""
VIEW = "otel_log_spans_mv"
MAP = "Map(LowCardinality(String), String)"

MAX_MILLISECONDS = 86_400_000
"""A longer duration counts as none: no call takes more than a day."""


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """A kind of log record."""

    client: str
    """The program, as its `service.name`; the agent's name."""
    name: str
    """The event's name: the record's, its attribute `event.name`, or its body."""
    operation: str
    where: str = "true"
    """SQL condition on `record`, its attributes, where not all records of the name are calls."""


EVENTS = (
    *(
        ClientEvent(client, f"{prefix}.{name}", operation)
        for client, prefix in (("qwen-code", "qwen-code"), ("gemini-cli", "gemini_cli"))
        for name, operation in (
            ("user_prompt", AGENT),
            ("api_response", CHAT),
            ("api_error", CHAT),
            ("tool_call", TOOL),
        )
    ),
    ClientEvent("codex", "codex.user_prompt", AGENT),
    # of the records of one stream, the last has the usage, or the error that ended it
    ClientEvent(
        *("codex", "codex.sse_event", CHAT),
        where="record['input_token_count'] != '' OR record['error.message'] != ''",
    ),
    ClientEvent("codex", "codex.api_request", CHAT, where="record['error.message'] != ''"),
    ClientEvent("codex", "codex.tool_result", TOOL),
    ClientEvent("claude-code", "claude_code.user_prompt", AGENT),
    ClientEvent("claude-code", "claude_code.api_request", CHAT),
    ClientEvent("claude-code", "claude_code.api_error", CHAT),
    ClientEvent(
        *("claude-code", "claude_code.assistant_response", CHAT),
        where="record['request_id'] != ''",
    ),
    ClientEvent("claude-code", "claude_code.tool_result", TOOL),
    # a tool that was not allowed to run has no result
    ClientEvent(
        *("claude-code", "claude_code.tool_decision", TOOL), where="record['decision'] = 'reject'"
    ),
)

FIELDS: dict[str, dict[str, tuple[str, ...]]] = {
    CHAT: {
        "gen_ai.request.model": ("model",),
        "gen_ai.response.id": ("response_id", "request_id"),
        "gen_ai.usage.input_tokens": ("input_token_count", "input_tokens"),
        "gen_ai.usage.output_tokens": ("output_token_count", "output_tokens"),
        "gen_ai.usage.cache_read.input_tokens": (
            *("cached_content_token_count", "cached_token_count", "cache_read_tokens"),
        ),
        "gen_ai.usage.reasoning.output_tokens": ("thoughts_token_count", "reasoning_token_count"),
        "gen_ai.response.finish_reasons": ("finish_reasons",),
        "gen_ai.agent.name": ("subagent_name", "agent.name", "agent_name"),
    },
    TOOL: {
        "gen_ai.tool.name": ("function_name", "tool_name"),
        "gen_ai.tool.call.id": ("call_id", "tool_use_id"),
        "gen_ai.tool.call.arguments": (
            "function_args",
            "arguments",
            "tool_input",
            "tool_parameters",
        ),
        "gen_ai.tool.call.result": ("output",),
        "gen_ai.agent.name": ("subagent_name", "agent.name", "agent_name"),
    },
    AGENT: {},
}
"""Attributes of the conventions by operation, and the records' attributes from which they are read;
the first that is not empty counts."""
ANSWER_ID = "JSONExtractString(record['response_text'], 1, 'responseId')"
"""SQL of the response's id in the answer as Gemini's API streamed it: Gemini CLI's record names it
nowhere else."""

SESSION = ("session.id", "conversation.id")
PROMPT = ("prompt_id", "prompt.id")
ERROR_TYPE = ("error.type", "error_type")
ERROR_MESSAGE = ("error.message", "error_message", "error")


def step_statements(step: str) -> Iterator[str]:
    """Yield the statements of one of `STEPS`: new records make spans, and stored ones do, once."""
    if step == CHANGED:
        yield f"ALTER TABLE otel.{VIEW} MODIFY QUERY {_spans()}"
        return
    yield f"CREATE MATERIALIZED VIEW IF NOT EXISTS otel.{VIEW} TO otel.otel_traces AS {_spans()}"
    # a record that arrives between the two statements makes an equal span twice, which is read once
    yield f"INSERT INTO otel.otel_traces ({', '.join(COLUMNS)}) {_spans()}"


COLUMNS = {
    "Timestamp": "fromUnixTimestamp64Nano(ended - nanoseconds)",
    "TraceId": "if(trace != '', trace, prompt_trace)",
    "SpanId": f"if(operation = '{AGENT}' AND prompt != '', prompt_span, record_span)",
    "ParentSpanId": (
        f"multiIf(parent != '', parent, operation != '{AGENT}' AND prompt != '', prompt_span, '')"
    ),
    "SpanName": "event",
    "SpanKind": "'Internal'",
    "ServiceName": "service",
    "ResourceAttributes": "resource",
    "ScopeName": "scope",
    "ScopeVersion": "version",
    "SpanAttributes": "mapUpdate(record, added)",
    "Duration": "toUInt64(nanoseconds)",
    "StatusCode": "if(failed, 'Error', 'Unset')",
    "StatusMessage": "if(failed, error, '')",
}
"""The columns of a span, and the SQL of each."""


def _spans() -> str:
    """Return the SQL of the spans of the log records."""
    values = ", ".join(f"{value} AS `{name}`" for name, value in COLUMNS.items())
    return f"SELECT {values} FROM ({_described()})"


def _described() -> str:
    """Return the SQL of the records with the fields that `COLUMNS` reads."""
    names = _quoted([each.name for each in EVENTS])
    milliseconds = "toFloat64OrZero(record['duration_ms'])"
    duration = f"{milliseconds} BETWEEN 0 AND {MAX_MILLISECONDS}"
    of_prompt = "session, prompt, identity"
    fields = {
        "operation": f"transform(event, [{names}], [{_quoted([e.operation for e in EVENTS])}], '')",
        "client": f"transform(event, [{names}], [{_quoted([e.client for e in EVENTS])}], '')",
        "session": _first(SESSION),
        "prompt": _first(PROMPT),
        "named": "session != '' OR prompt != ''",
        "error_type": _first(ERROR_TYPE),
        "error": _first(ERROR_MESSAGE),
        "failed": (
            "error_type != '' OR error != '' OR record['success'] = 'false' "
            "OR record['decision'] = 'reject' OR JSONExtractBool(record['metadata'], 'isError')"
        ),
        "nanoseconds": f"if({duration}, toInt64({milliseconds} * 1e6), 0)",
        "record_span": (
            "lower(hex(sipHash64(event, ended, trace, parent, identity, mapSort(record))))"
        ),
        "prompt_span": f"lower(hex(sipHash64('{AGENT}', {of_prompt})))",
        "prompt_trace": f"lower(hex(sipHash128({of_prompt}, if(named, '', record_span))))",
        "added": (
            f"mapFilter((name, value) -> value != '', map({', '.join(_attributes())})::{MAP})"
        ),
    }
    selected = ", ".join(f"{value} AS {name}" for name, value in fields.items())
    return f"SELECT *, {selected} FROM ({_records()})"


def _records() -> str:
    """Return the SQL of the records that describe calls, by names that no column of a span has."""
    names = _quoted(sorted({each.name for each in EVENTS}))
    # Claude Code's attribute lacks the prefix, which its body has
    event = f"arrayFirst(each -> each IN ({names}), [EventName, LogAttributes['event.name'], Body])"
    conditions = " OR ".join(
        f"event = '{each.name}'" + (f" AND ({each.where})" if each.where != "true" else "")
        for each in EVENTS
    )
    return (
        f"SELECT {event} AS event, toUnixTimestamp64Nano(Timestamp) AS ended, "
        "TraceId AS trace, SpanId AS parent, RolloutId || '.' || Attempt AS identity, "
        "ServiceName AS service, ResourceAttributes AS resource, ScopeName AS scope, "
        "ScopeVersion AS version, LogAttributes AS record "
        f"FROM otel.otel_logs WHERE event != '' AND ended > 0 AND ({conditions})"
    )


def _attributes() -> Iterator[str]:
    """Yield the SQL of each attribute's name and value."""
    yield f"'{attributes.LOG_EVENT}', event"
    yield "'gen_ai.operation.name', operation"
    yield "'session.id', session"
    yield "'error.type', if(failed, if(error_type != '', error_type, 'error'), '')"
    names = dict.fromkeys(name for fields in FIELDS.values() for name in fields)
    for name in names:
        cases = [f"operation = '{AGENT}', client"] if name == "gen_ai.agent.name" else []
        further = (ANSWER_ID,) if name == "gen_ai.response.id" else ()
        cases += [
            f"operation = '{operation}', {_first(fields[name], further)}"
            for operation, fields in FIELDS.items()
            if name in fields
        ]
        yield f"'{name}', multiIf({', '.join(cases)}, '')"


def _first(names: tuple[str, ...], further: tuple[str, ...] = ()) -> str:
    """Return the SQL of the first attribute, or further SQL, that is not empty."""
    values = [*(f"record['{name}']" for name in names), *further]
    if len(values) == 1:
        return values[0]
    return f"arrayFirst(each -> each != '', [{', '.join(values)}])"


def _quoted(texts: list[str]) -> str:
    return ", ".join(f"'{text}'" for text in texts)
