"""The keys by which a model call is recognised in another trace of its process, as SQL.

Two instrumentations of one process may each make a trace of the same call. A key is `id:` with the
response's id, `answer:` with a hash of the answer's first text or tool, or `error:`. Equal keys are
necessary, not sufficient: `calls.strays` compares what the spans describe.
"""

from ltrain_instrument import attributes
from ltrain_transforms.calls import LOG_DELAY, SLACK

PROCESS_SQL = (
    "multiIf(ResourceAttributes['service.instance.id'] != '', "
    "ResourceAttributes['service.instance.id'], "
    "ResourceAttributes['process.pid'] != '', concat(if(ResourceAttributes['host.id'] != '', "
    "ResourceAttributes['host.id'], ResourceAttributes['host.name']), '/', "
    "ResourceAttributes['process.pid']), '')"
)
"""SQL expression: the process that ended a span; an empty string if its resource names none."""


def _attribute(name: str) -> str:
    return f"SpanAttributes['{name}']"


def _first(*values: str) -> str:
    return f"arrayFirst(one -> one != '', [{', '.join(values)}])"


def _part(kind: str, field: str) -> str:
    """Return the SQL of a field of the answer's first part of a kind."""
    parts = f"JSONExtractArrayRaw({_attribute('gen_ai.output.messages')}, 1, 'parts')"
    first = f"arrayFirst(part -> JSONExtractString(part, 'type') = '{kind}', {parts})"
    return f"JSONExtractString({first}, '{field}')"


_LANGCHAIN = "'generations', 1, 1, 'message', 'kwargs', 'response_metadata', 'id'"
_IS_MODEL_CALL = (
    f"(ScopeName != '{attributes.SCOPE_RUNNER}' AND ("
    f"{_attribute('openinference.span.kind')} = 'LLM' "
    "OR GenAiOp IN ('chat', 'text_completion', 'generate_content') "
    f"OR {_attribute('llm.request.type')} IN ('chat', 'completion') "
    f"OR {_attribute('gen_ai.response.id')} != '' "
    f"OR {_attribute('gen_ai.completion.0.role')} != ''))"
)
_RESPONSE_ID = _first(
    _attribute("gen_ai.response.id"),
    f"JSONExtractString({_attribute('output.value')}, 'id')",
    f"JSONExtractString({_attribute('output.value')}, {_LANGCHAIN})",
)
_OPENINFERENCE = "llm.output_messages.0.message"
_ANSWER = _first(
    *(
        f"trimBoth({text})"
        for text in (
            _attribute(f"{_OPENINFERENCE}.content"),
            _attribute(f"{_OPENINFERENCE}.contents.0.message_content.text"),
            _part("text", "content"),
            _attribute("gen_ai.completion.0.content"),
            _attribute(f"{_OPENINFERENCE}.tool_calls.0.tool_call.function.name"),
            _part("tool_call", "name"),
            _attribute("gen_ai.completion.0.tool_calls.0.name"),
        )
    )
)
CALL_KEYS_SQL = (
    f"if({_IS_MODEL_CALL}, arrayFilter(key -> key NOT IN ('id:', 'answer:', 'error:'), ["
    f"concat('id:', {_RESPONSE_ID}), "
    f"if({_ANSWER} != '', concat('answer:', hex(sipHash64({_ANSWER}))), 'answer:'), "
    "if(StatusCode = 'Error', 'error:failed', 'error:')]), [])"
)
"""SQL expression: the keys of a model call; none for other spans."""


def related_traces(traces: str, *, by_id: bool = False) -> str:
    """Return the SQL of the traces with a call of equal key, in one process and time.

    Calls with one response id may be of two processes: a proxy's and its client's.

    Args:
        traces: SQL from `FROM` on, that selects the spans.
        by_id: compare only response ids, of one process. Equal ones are surely one call; each is a
            row.

    Returns:
        A query with the columns `units`, the traces, and `scopes`, their instrumentations. Calls
        that overlap, directly or by others, form a row, unless each of their traces has the same
        instrumentations: these record each call within one trace. The cost is that of sorting the
        calls.
    """
    part = "process, Sender, key"
    compared = "startsWith(key, 'id:')" if by_id else "process != '' OR startsWith(key, 'id:')"
    process = PROCESS_SQL if by_id else f"if(startsWith(key, 'id:'), '', {PROCESS_SQL})"
    calls = (
        f"SELECT TraceId, SpanId, ScopeName, Sender, arrayJoin({CALL_KEYS_SQL}) AS key, "
        f"{process} AS process, {_TIMES} {traces}"
    )
    by_trace = (
        f"SELECT {part}, overlap, TraceId, arraySort(groupUniqArray(ScopeName)) AS recorded_by "
        f"FROM ({_overlaps(calls, compared, part, SLACK)}) GROUP BY {part}, overlap, TraceId"
    )
    return (
        "SELECT groupUniqArray(TraceId) AS units, "
        "arrayDistinct(arrayFlatten(groupArray(recorded_by))) AS scopes "
        f"FROM ({by_trace}) GROUP BY {part}, overlap "
        "HAVING length(units) > 1 AND uniqExact(recorded_by) > 1"
    )


def traces_of_answers(traces: str, gateway: str) -> str:
    """Return the SQL of the traces that describe one answer of the gateway, by its response id.

    Args:
        traces: as in `related_traces`.
        gateway: the SQL condition on the gateway's spans.
    """
    calls = (
        f"SELECT TraceId, SpanId, {gateway} AS by_gateway, arrayJoin({CALL_KEYS_SQL}) AS key, "
        f"{_TIMES} {traces}"
    )
    numbered = _overlaps(calls, "startsWith(key, 'id:')", "key", LOG_DELAY)
    return (
        f"SELECT groupUniqArray(TraceId) AS units FROM ({numbered}) GROUP BY key, overlap "
        "HAVING length(units) > 1 AND max(by_gateway)"
    )


_TIMES = "toUnixTimestamp64Nano(Timestamp) AS start, start + toInt64(Duration) AS end"


def _overlaps(calls: str, compared: str, part: str, slack: int) -> str:
    """Return the SQL of `calls` with `overlap`: equal for calls of a part that overlap in time."""
    before = "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
    within = f"PARTITION BY {part} ORDER BY start, end, TraceId, SpanId"
    marked = (
        f"SELECT *, start > max(end) OVER ({within} {before}) + {slack} AS begins "
        f"FROM ({calls}) WHERE {compared}"
    )
    return f"SELECT *, sum(begins) OVER ({within}) AS overlap FROM ({marked})"
