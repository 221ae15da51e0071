"""A call of a user that a candidate answers, too, in a trace of its own; nobody sees its answer."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Tracer, format_trace_id
from starlette.types import Message

from ltrain_instrument import attributes
from ltrain_instrument.identity import Identity
from ltrain_instrument.tokens import CallSpan
from ltrain_train.gateway.apis import ServerAnswer
from ltrain_train.gateway.attempts import AttemptCalls
from ltrain_train.gateway.exchange import RECORDER, Call

SHADOW = Identity(mode="shadow")


def shadow_call(
    call: Call, policy: str, version: int, known: Mapping[str, str], tracer: Tracer
) -> Call:
    """Return the same request for a version of a policy.

    Args:
        call: the user's call.
        known: further attributes of the span.
        tracer: records the span, which begins now.
    """
    trace = call.span.span.get_span_context().trace_id
    values = {
        **SHADOW.attributes(),
        **RECORDER,
        **known,
        attributes.EXPERIMENT_SHADOWED: format_trace_id(trace),
    }
    return replace(
        call,
        span=CallSpan(tracer, Context(), SpanKind.SERVER, call.request, values),
        attempt=AttemptCalls(SHADOW, pinned=True, versions={policy: version}),
        send=_discard,
        answer=ServerAnswer(call.request),
        placement=None,
    )


async def stay() -> Message:
    """Wait forever: the client of a call that never disconnects."""
    return await asyncio.Future()


async def _discard(message: Message) -> None:
    """Send nothing."""
