"""The runner's own spans: dispatch before an attempt, evaluations and a closing span after it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ltrain_instrument import attributes
from ltrain_instrument.identity import Identity
from ltrain_train.rollout.attempt import Outcome

LONGEST_REASON = 2000

Values = Mapping[str, str | int | float]


@dataclass(slots=True)
class Entry:
    """What the runner has written of one attempt."""

    identity: Identity
    root: SpanContext
    """Its dispatch span, which all of the attempt's other spans are below."""
    started: int
    """Unix nanoseconds."""
    spans: int = 0
    """Spans that ended here for it."""

    @property
    def context(self) -> Context:
        return trace.set_span_in_context(trace.NonRecordingSpan(self.root))

    @property
    def traceparent(self) -> str:
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier, context=self.context)
        return carrier["traceparent"]


class Record:
    """Writes spans of scope `ltrain.runner`; each is on disk when its method returns."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer(attributes.SCOPE_RUNNER)

    def dispatch(self, identity: Identity, lease: float) -> Entry:
        """Say that an attempt begins, and that it is this runner's for `lease` seconds."""
        now = time.time_ns()
        span = self._tracer.start_span(
            attributes.SPAN_DISPATCH,
            Context(),
            start_time=now,
            attributes={
                **identity.attributes(),
                attributes.LEASE_UNTIL: now + int(lease * 1e9),
            },
        )
        span.end()
        return Entry(identity, span.get_span_context(), now, spans=1)

    def evaluate(self, entry: Entry, name: str, value: float) -> None:
        """Write one value of the reward function."""
        said: Values = {
            attributes.EVALUATION_NAME: name,
            attributes.EVALUATION_VALUE: value,
            attributes.REWARD_SCOPE: "rollout",
        }
        self._write(entry, attributes.SPAN_EVALUATION, said)
        entry.spans += 1

    def close(
        self, entry: Entry, outcome: Outcome, *, reason: str, llm_calls: int, digests: Values
    ) -> float:
        """Write the closing span, from dispatch to now, and give its seconds."""
        said: dict[str, str | int | float] = {
            attributes.OUTCOME: outcome.value,
            attributes.LLM_CALLS: llm_calls,
            attributes.SPANS: entry.spans,
            **digests,
        }
        if reason:
            said[attributes.OUTCOME_REASON] = _sayable(reason)
        self._write(entry, attributes.SPAN_ROLLOUT, said, start=entry.started)
        return (time.time_ns() - entry.started) / 1e9

    def _write(self, entry: Entry, name: str, said: Values, start: int | None = None) -> None:
        carried: dict[str, str | int | float] = {**entry.identity.attributes(), **said}
        span = self._tracer.start_span(name, entry.context, attributes=carried, start_time=start)
        span.end()


def _sayable(text: str) -> str:
    """Return text from an agent as a span can carry it: short, without half a surrogate pair."""
    return text[:LONGEST_REASON].encode(errors="replace").decode()
