"""The runner's own spans: dispatch before an attempt, evaluations and a closing span after it.

The dispatch span has the task's input. The task's further fields, such as the expected answer, and
the result are on the closing span: the agent has ended before they are written.
"""

import json
import time
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, Self

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import Tracer, TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import SpanContext, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pydantic import BaseModel, ConfigDict

from ltrain_instrument import attributes
from ltrain_instrument.identity import Identity
from ltrain_instrument.privacy import content
from ltrain_instrument.prompts import Prompt
from ltrain_instrument.tokens import CallSpan, Request
from ltrain_train.workers import Outcome

MAX_REASON_CHARACTERS = 2000

Values = Mapping[str, str | int | float]


@dataclass(slots=True)
class AttemptSpans:
    """The spans that the runner has written for one attempt."""

    identity: Identity
    root: SpanContext
    """Context of the dispatch span, the ancestor of all other spans of the attempt."""
    started: int
    """Unix nanoseconds."""
    spans: int = 0
    """Number of spans that the runner has ended for the attempt."""

    @property
    def context(self) -> Context:
        """The context of the dispatch span, for spans below it."""
        return trace.set_span_in_context(trace.NonRecordingSpan(self.root))

    @property
    def traceparent(self) -> str:
        """The dispatch span as a W3C traceparent."""
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier, context=self.context)
        return carrier["traceparent"]


class ClosingSpan(BaseModel):
    """The closing span of an attempt without its contents, as the log of attempts keeps it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    span: int
    """Its span id."""
    parent: str
    """The dispatch span, as a W3C traceparent."""
    started: int
    """Unix nanoseconds."""
    attributes: dict[str, str | int | float]

    @classmethod
    def from_attempt(
        cls,
        attempt: AttemptSpans,
        outcome: Outcome,
        *,
        reason: str,
        llm_calls: int,
        digests: Values,
    ) -> Self:
        """Return the closing span of an attempt that ends now.

        Args:
            outcome: how the attempt ended.
            reason: why; '' if it is ok.
            llm_calls: number of calls that the gateway answered.
            digests: the digests of the tasks and the reward, by attribute.
        """
        values: dict[str, str | int | float] = {
            **attempt.identity.attributes(),
            attributes.OUTCOME: outcome.value,
            attributes.LLM_CALLS: llm_calls,
            attributes.SPANS: attempt.spans,
            **digests,
        }
        if reason:
            values[attributes.OUTCOME_REASON] = _span_text(reason)
        return cls(
            span=RandomIdGenerator().generate_span_id(),
            parent=attempt.traceparent,
            started=attempt.started,
            attributes=values,
        )


class _OneSpanId(RandomIdGenerator):
    """Generates the span id that a closing span has."""

    def __init__(self, span: int) -> None:
        self._span = span

    def generate_span_id(self) -> int:
        return self._span


class SpanWriter:
    """Writes spans of scope `ltrain.runner`; each span is on disk when its method returns."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer(attributes.SCOPE_RUNNER)

    def write_dispatch(
        self, identity: Identity, lease: float, task_input: Any, prompts: Mapping[str, Prompt]
    ) -> AttemptSpans:
        """Write the dispatch span of an attempt, which this runner leases for `lease` seconds."""
        now = time.time_ns()
        span = self._tracer.start_span(
            attributes.SPAN_DISPATCH,
            Context(),
            start_time=now,
            attributes={
                **identity.attributes(),
                attributes.LEASE_UNTIL: now + int(lease * 1e9),
                **{f"{attributes.PROMPT}{name}": p.version or 0 for name, p in prompts.items()},
                **_content({attributes.TASK_INPUT: task_input}),
            },
        )
        span.end()
        return AttemptSpans(identity, span.get_span_context(), now, spans=1)

    def start_call(self, attempt: AttemptSpans, request: Request) -> CallSpan:
        """Start the span of a call that judges the attempt's result; the caller ends it."""
        attempt.spans += 1
        identity = attempt.identity.attributes()
        return CallSpan(self._tracer, attempt.context, SpanKind.CLIENT, request, identity)

    def write_evaluation(
        self, attempt: AttemptSpans, name: str, value: float, evidence: str = ""
    ) -> None:
        """Write one value of the reward; the evidence quotes content, and is recorded as such."""
        values: dict[str, str | int | float] = {
            attributes.EVALUATION_NAME: name,
            attributes.EVALUATION_VALUE: value,
            attributes.REWARD_SCOPE: "rollout",
        }
        if evidence and content.is_content_recorded():
            values[attributes.EVALUATION_EXPLANATION] = _span_text(evidence)
        self._write(attempt, attributes.SPAN_EVALUATION, values)
        attempt.spans += 1

    def write_end(self, closing: ClosingSpan, contents: Mapping[str, Any]) -> None:
        """Write the closing span of an attempt, from dispatch to now.

        Args:
            contents: JSON values that the switch for content applies to, by attribute.
        """
        self._write_closing(closing, _content(contents))

    def write_end_again(self, closing: ClosingSpan) -> None:
        """Write the closing span that a killed process may have written, without its contents.

        The span has the same id, so readers see one of the two: the complete one, if it exists.
        """
        self._write_closing(closing, {attributes.TRUNCATED: True})

    def _write_closing(self, closing: ClosingSpan, values: Mapping[str, str | bool]) -> None:
        tracer = copy(self._tracer)  # the provider has one tracer for all spans of the scope
        if isinstance(tracer, Tracer):
            tracer.id_generator = _OneSpanId(closing.span)
        span = tracer.start_span(
            attributes.SPAN_ROLLOUT,
            TraceContextTextMapPropagator().extract({"traceparent": closing.parent}, Context()),
            attributes={**closing.attributes, **values},
            start_time=closing.started,
        )
        span.end()

    def _write(self, attempt: AttemptSpans, name: str, values: Values) -> None:
        all_values: dict[str, str | int | float] = {**attempt.identity.attributes(), **values}
        self._tracer.start_span(name, attempt.context, attributes=all_values).end()


def _content(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the values as JSON by attribute; none where content is not recorded."""
    if not content.is_content_recorded():
        return {}
    return {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}


def _span_text(text: str) -> str:
    """Return a text of an agent or a judge as a span attribute: cut, without lone surrogates."""
    return text[:MAX_REASON_CHARACTERS].encode(errors="replace").decode()
