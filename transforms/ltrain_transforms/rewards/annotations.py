"""Scores in spans, as each convention writes them; `evaluations` checks their values and targets.

- OpenTelemetry: `gen_ai.evaluation.*` on a span, a span event or a log record.
- OpenInference: `{annotations,evaluations}.N.{annotation,evaluation}.{name,score}` on any span
  judge that span; with the prefix `trace.` or `session.` the whole execution.
- agent-lightning 0.3: `agentlightning.reward.N.{name,value}` on its annotation spans; an attribute
  in `agentlightning.link.N.{key_match,value_match}` identifies the judged span.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import polars as pl

from ltrain_instrument import attributes
from ltrain_transforms.traces import Span, iter_spans, parse_index

AGENT_LIGHTNING = "agentlightning.annotation"
"""The name of agent-lightning's reward spans."""

ANNOTATION = re.compile(
    r"(?P<of>trace\.|session\.|)(?:annotations|evaluations)\.(?P<n>\d+)\."
    r"(?:annotation|evaluation)\.(?P<what>name|score)"
)
REWARD = re.compile(r"agentlightning\.reward\.(?P<n>\d+)\.(?P<what>name|value)")
LINK = re.compile(r"agentlightning\.link\.(?P<n>\d+)\.(?P<what>key_match|value_match)")

ANNOTATION_PREFIX = r"^(?:trace\.|session\.|)(?:annotations|evaluations)\.\d+\."
"""Matches the names of OpenInference's annotation attributes."""


@dataclass(frozen=True, slots=True)
class Score:
    """One score, before its value and target are checked."""

    name: str
    value: str | None
    scope: str | None
    """call, rollout, or None: the kind of the span that it judges decides."""
    candidates: Sequence[str]
    """Ids of spans that it may judge, the likeliest first."""
    step: int = 0
    """Its order among the scores of one span."""

    @classmethod
    def from_evaluation(
        cls, values: Mapping[str, str], candidates: Sequence[str], step: int = 0
    ) -> Self:
        """Read the attributes of an OpenTelemetry evaluation."""
        return cls(
            name=values.get(attributes.EVALUATION_NAME) or "reward",
            value=values.get(attributes.EVALUATION_VALUE),
            scope=values.get(attributes.REWARD_SCOPE),
            candidates=candidates,
            step=step,
        )


def read_scores(span: Span) -> Iterator[Score]:
    """Yield every score in the attributes, events and annotations of `span`."""
    around = [*span.links, span.parent_id or ""]
    is_evaluation = span.name == attributes.SPAN_EVALUATION
    if is_evaluation:
        yield Score.from_evaluation(span.attributes, around)
    yield from _annotations(span, around if is_evaluation else [span.span_id])
    if span.name == AGENT_LIGHTNING:
        yield from _agent_lightning_rewards(span, around)
    for step, (name, values) in enumerate(span.events, 1):
        if name == attributes.SPAN_EVALUATION:  # an event judges the span that it is on
            yield Score.from_evaluation(values, [span.span_id], step)


def _annotations(span: Span, candidates: Sequence[str]) -> Iterator[Score]:
    for (of, _), fields in sorted(_numbered_fields(ANNOTATION, span).items()):
        scope = "rollout" if of else span.get(attributes.REWARD_SCOPE)
        yield Score(fields.get("name") or "reward", fields.get("score"), scope, candidates)


def _agent_lightning_rewards(span: Span, candidates: Sequence[str]) -> Iterator[Score]:
    for _, fields in sorted(_numbered_fields(REWARD, span).items()):
        yield Score(fields.get("name") or "reward", fields.get("value"), None, candidates)


def _numbered_fields(pattern: re.Pattern[str], span: Span) -> dict[tuple[str, int], dict[str, str]]:
    """Return the attributes `….N.what` by their prefix (empty if the pattern has none) and N."""
    fields: dict[tuple[str, int], dict[str, str]] = {}
    for name, value in span.attributes.items():
        match = pattern.fullmatch(name)
        if match is not None:
            number = parse_index(match["n"])
            if number is None:
                continue
            key = (match.groupdict().get("of", ""), number)
            fields.setdefault(key, {})[match["what"]] = value
    return fields


def find_linked_spans(scored: Sequence[Span], spans: pl.DataFrame) -> dict[str, str]:
    """Return, by agent-lightning annotation span, the span with the attribute that its link names.

    Args:
        scored: spans with scores.
        spans: `SPANS`, among which the linked ones are searched.
    """
    wanted = {
        span.span_id: (span.execution_id, link["key_match"], link["value_match"])
        for span in scored
        if span.name == AGENT_LIGHTNING
        for link in _numbered_fields(LINK, span).values()
        if link.keys() >= {"key_match", "value_match"}
    }
    keys = sorted({key for _, key, _ in wanted.values()})
    executions = sorted({execution for execution, _, _ in wanted.values()})
    others = spans.filter(
        pl.col("execution_id").is_in(executions), pl.col("name") != AGENT_LIGHTNING
    )
    by_attribute: dict[tuple[str, str, str], str] = {}
    for span in iter_spans(others) if keys else ():
        for key in keys:
            by_attribute.setdefault((span.execution_id, key, span.get(key) or ""), span.span_id)
    return {span: by_attribute[link] for span, link in wanted.items() if link in by_attribute}
