"""How each instrumentation's attributes read as a call: one module a dialect.

A span may speak several. Preferred are our own attributes; then those of writers who use
OpenTelemetry's names in a way of their own (LangSmith, the AI SDK, AgentOps); then OpenTelemetry's
gen_ai, OpenInference, traceloop, Langfuse; last what log records say.
"""

import re
from collections.abc import Callable
from functools import lru_cache

from ltrain_instrument import attributes
from ltrain_transforms.dialects import (
    agentlightning,
    agentops,
    crewai,
    events,
    gateway,
    gen_ai,
    langfuse,
    langsmith,
    llama_index,
    openinference,
    traceloop,
    vercel,
)
from ltrain_transforms.dialects.partial import Partial
from ltrain_transforms.spans import Span
from ltrain_transforms.untrusted import FAILURES

# from the least preferred on: later ones override, and the gateway all of them
DIALECTS = (
    langfuse,
    traceloop,
    openinference,
    crewai,
    llama_index,
    gen_ai,
    agentops,
    vercel,
    langsmith,
    agentlightning,
)
Reader = Callable[[Span], Partial]
Failures = tuple[tuple[str, Exception], ...]
"""The dialects that could not read a span, and what each raised."""
STATUS_READER = "status"
"""What failures name where the span's own status or events cannot be read."""

BOOKKEEPING = frozenset(
    {
        attributes.SPAN_EVALUATION,
        attributes.SPAN_DISPATCH,
        attributes.SPAN_ROLLOUT,
        attributes.SPAN_PROCESS,
        attributes.SPAN_STEP,
        attributes.SPAN_PUBLISH,
    }
)
"""Names of spans that describe an execution or its training, never a call."""


def describe(span: Span) -> tuple[Partial | None, Failures]:
    """Return what `span` says of a call, None where it describes none, and who could not read it.

    A reader that raises says nothing; the others are read.
    """
    if span.name in BOOKKEEPING:
        return None, ()
    partial: Partial = {}
    failures: Failures = ()
    readers = _readers(span.attribute_names)
    for read in (events.read, *readers) if span.logs_text else readers:
        try:
            partial |= read(span)
        # broad: a span can be written so that a reader raises anything; the rest of the trace
        # must be read, and each failure becomes a drop that names the dialect and the error
        except FAILURES as error:
            failures += ((read.__module__.rpartition(".")[2], error),)
    if "kind" not in partial:
        return None, failures
    try:
        return _completed(span, partial), failures
    except FAILURES as error:  # as above
        return partial, (*failures, (STATUS_READER, error))


def _completed(span: Span, partial: Partial) -> Partial:
    """Add what the span itself says of the end, and take out what only looks like a value."""
    if partial.get("input_tokens") == 0 and partial.get("output_tokens") == 0:
        del partial["input_tokens"], partial["output_tokens"]  # not zero: a stream without usage
    if span.failed:
        partial["status"] = "error"
    if partial.get("status") == "error" and "error_type" not in partial:
        partial |= _error_type(span)
    if partial.get("error_type") == "GeneratorExit":  # who read the stream went away
        del partial["status"], partial["error_type"]
        partial["delivered"] = False
    return partial


@lru_cache(maxsize=1024)  # an instrumentation writes the same names again and again
def _readers(names: str) -> tuple[Reader, ...]:
    """Return the dialects that a span with these attribute names speaks, the gateway's last."""
    spoken = (each.read for each in DIALECTS if any(mark in names for mark in each.MARKS))
    return (*spoken, gateway.read)


def _error_type(span: Span) -> Partial:
    """Find the error's class: in an exception event, else in LangChain's status message."""
    for name, values in span.events:
        if name == "exception" and values.get("exception.type"):
            return {"error_type": values["exception.type"]}
    spelled = re.match(r"(\w+)\(", span.message)
    return {"error_type": spelled.group(1)} if spelled else {}
