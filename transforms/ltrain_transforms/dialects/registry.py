"""How each instrumentation's attributes are read as a call: one module for each dialect.

A span may have the attributes of several dialects. They override each other in this order:

1. ltrain's own attributes;
2. writers that use OpenTelemetry's names in their own way: LangSmith, the AI SDK, AgentOps,
   Laminar, Logfire, Weave, OpenLIT;
3. OpenTelemetry's gen_ai, OpenInference, traceloop, Langfuse, MLflow, Braintrust, Opik;
4. log records and events of the span.

A new dialect is a module with its record, and its place in `DIALECTS`.
"""

import re
from functools import lru_cache

from ltrain_instrument import attributes
from ltrain_transforms.dialects import (
    coding_clis,
    crewai,
    dspy,
    events,
    gateway,
    gen_ai,
    llama_index,
    openinference,
    traceloop,
    vercel,
)
from ltrain_transforms.dialects.partial import Dialect, Partial
from ltrain_transforms.dialects.platforms import (
    agentlightning,
    agentops,
    braintrust,
    laminar,
    langfuse,
    langsmith,
    logfire,
    mlflow,
    openlit,
    opik,
    weave,
)
from ltrain_transforms.traces import FAILURES, Role, Span

# later dialects override earlier ones; the gateway overrides all of them
DIALECTS = (
    opik.DIALECT,
    braintrust.DIALECT,
    mlflow.DIALECT,
    langfuse.DIALECT,
    traceloop.DIALECT,
    openinference.DIALECT,
    crewai.DIALECT,
    dspy.DIALECT,
    llama_index.DIALECT,
    gen_ai.DIALECT,
    openlit.DIALECT,
    weave.DIALECT,
    logfire.DIALECT,
    laminar.DIALECT,
    coding_clis.DIALECT,
    agentops.DIALECT,
    vercel.DIALECT,
    langsmith.DIALECT,
    agentlightning.DIALECT,
)
BY_PRECEDENCE = (gateway.DIALECT, *reversed(DIALECTS), events.DIALECT)
"""All dialects: a field that one leaves open is taken from the next."""
STREAMS = ("gen_ai.is_streaming", "llm.is_streaming")
"""Traceloop's attributes of a request for a stream, newer and older."""
Failures = tuple[tuple[str, Exception], ...]
"""The dialects that raised for a span, and their errors."""
STATUS_READER = "status"
"""The name in `Failures` where the span's own status or events could not be read."""

BOOKKEEPING = frozenset(
    {
        attributes.SPAN_EVALUATION,
        attributes.SPAN_DISPATCH,
        attributes.SPAN_ROLLOUT,
        attributes.SPAN_PROCESS,
        attributes.SPAN_STEP,
        attributes.SPAN_PUBLISH,
        attributes.SPAN_ALARM,
    }
)
"""Names of spans that describe an execution or its training, never a call. What else a runner
writes are the calls of its judges, which are none of the execution's."""


def describe(span: Span) -> tuple[Partial | None, Failures]:
    """Return the fields of the call that `span` describes, and the dialects that failed.

    The fields are None where the span describes no call. A dialect that raises adds no field; the
    others are read.
    """
    if span.name in BOOKKEEPING or span.role == Role.RUNNER:
        return None, ()
    partial: Partial = {}
    failures: Failures = ()
    dialects = _dialects(span.attribute_names)
    with_events = span.logs_text or events.has_messages(span)
    for dialect in (events.DIALECT, *dialects) if with_events else dialects:
        try:
            partial |= dialect.read(span)
        # broad: a span can be written so that a dialect raises anything; the rest of the trace
        # must be read, and each failure becomes a drop that names the dialect and the error
        except FAILURES as error:
            failures += ((dialect.name, error),)
    if "kind" not in partial:
        return None, failures
    try:
        return _completed(span, partial), failures
    except FAILURES as error:  # as above
        return partial, (*failures, (STATUS_READER, error))


def _completed(span: Span, partial: Partial) -> Partial:
    """Add the span's own status, and remove values that only look like one."""
    if partial.get("input_tokens") == 0 and partial.get("output_tokens") == 0:
        del partial["input_tokens"], partial["output_tokens"]  # not zero: a stream without usage
    if _was_left(span, partial):
        partial["delivered"] = False
    if span.failed:
        partial["status"] = "error"
    if partial.get("status") == "error" and "error_type" not in partial:
        partial |= _error_type(span)
    if partial.get("error_type") == "GeneratorExit":  # the reader of the stream stopped early
        del partial["status"], partial["error_type"]
        partial["delivered"] = False
    return partial


def _was_left(span: Span, partial: Partial) -> bool:
    """Return whether the client left the stream: traceloop's instrumentors end the span normally.

    Beside the content of a stream that ended they write its finish reason.
    """
    if partial["kind"] != "llm" or "output_messages" not in partial or span.failed:
        return False
    ended = "finish_reason" in partial or "output_tokens" in partial
    return not ended and any(map(span.flag, STREAMS))


@lru_cache(maxsize=1024)  # an instrumentation writes the same names again and again
def _dialects(names: str) -> tuple[Dialect, ...]:
    """Return the dialects to read for these attribute names, the gateway's last."""
    matching = (one for one in DIALECTS if any(prefix in names for prefix in one.prefixes))
    return (*matching, gateway.DIALECT)


def _error_type(span: Span) -> Partial:
    """Return the error's class: of an exception event, else of LangChain's status message."""
    for name, values in span.events:
        if name == "exception" and values.get("exception.type"):
            return {"error_type": values["exception.type"]}
    match = re.match(r"(\w+)\(", span.message)
    return {"error_type": match.group(1)} if match else {}
