"""How each convention says what something is worth: spans -> statements, before they are judged.

- OpenTelemetry: `gen_ai.evaluation.*` on a span, a span event or a log record.
- OpenInference: `{annotations,evaluations}.N.{annotation,evaluation}.{name,score}` on any span
  judge that span; after `trace.` or `session.` the whole execution.
- agent-lightning 0.3: `agentlightning.reward.N.{name,value}` on its annotation spans, with
  `agentlightning.link.N.{key_match,value_match}`: an attribute by which the judged span is found.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import polars as pl

from ltrain_instrument import attributes
from ltrain_transforms.spans import Span, iter_spans
from ltrain_transforms.untrusted import parse_index

AGENT_LIGHTNING = "agentlightning.annotation"
"""The name of its reward spans."""

ANNOTATION = re.compile(
    r"(?P<of>trace\.|session\.|)(?:annotations|evaluations)\.(?P<n>\d+)\."
    r"(?:annotation|evaluation)\.(?P<what>name|score)"
)
REWARD = re.compile(r"agentlightning\.reward\.(?P<n>\d+)\.(?P<what>name|value)")
LINK = re.compile(r"agentlightning\.link\.(?P<n>\d+)\.(?P<what>key_match|value_match)")

MARKED = r"^(?:trace\.|session\.|)(?:annotations|evaluations)\.\d+\."
"""Finds OpenInference's annotations by the names of a span's attributes."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One score, before anyone asked whether it is a number and what it judges."""

    name: str
    value: str | None
    scope: str | None
    """call, rollout, or null: what is pointed at decides."""
    pointers: Sequence[str]
    """Spans that it may judge, the likeliest first."""
    step: int = 0
    """Its order among what one span said."""

    @classmethod
    def of_evaluation(
        cls, values: Mapping[str, str], pointers: Sequence[str], step: int = 0
    ) -> Self:
        """Read the attributes of an OpenTelemetry evaluation."""
        return cls(
            name=values.get(attributes.EVALUATION_NAME) or "reward",
            value=values.get(attributes.EVALUATION_VALUE),
            scope=values.get(attributes.REWARD_SCOPE),
            pointers=pointers,
            step=step,
        )


def statements(span: Span) -> Iterator[Statement]:
    """Give everything that `span`, its events and its annotations say."""
    around = [*span.links, span.parent_id or ""]
    judges = span.name == attributes.SPAN_EVALUATION
    if judges:
        yield Statement.of_evaluation(span.attributes, around)
    yield from _annotations(span, around if judges else [span.span_id])
    if span.name == AGENT_LIGHTNING:
        yield from _rewards(span, around)
    for step, (name, values) in enumerate(span.events, 1):
        if name == attributes.SPAN_EVALUATION:  # an event judges the span that it is on
            yield Statement.of_evaluation(values, [span.span_id], step)


def _annotations(span: Span, own: Sequence[str]) -> Iterator[Statement]:
    for (of, _), said in sorted(_numbered(ANNOTATION, span).items()):
        scope = "rollout" if of else span.get(attributes.REWARD_SCOPE)
        yield Statement(said.get("name") or "reward", said.get("score"), scope, own)


def _rewards(span: Span, around: Sequence[str]) -> Iterator[Statement]:
    for _, said in sorted(_numbered(REWARD, span).items()):
        yield Statement(said.get("name") or "reward", said.get("value"), None, around)


def _numbered(pattern: re.Pattern[str], span: Span) -> dict[tuple[str, int], dict[str, str]]:
    """Gather attributes `….N.what` by their prefix, where the pattern has one, and their N."""
    found: dict[tuple[str, int], dict[str, str]] = {}
    for name, value in span.attributes.items():
        match = pattern.fullmatch(name)
        if match is not None:
            number = parse_index(match["n"])
            if number is None:
                continue
            key = (match.groupdict().get("of", ""), number)
            found.setdefault(key, {})[match["what"]] = value
    return found


def linked(saying: Sequence[Span], spans: pl.DataFrame) -> dict[str, str]:
    """Give the span that each of agent-lightning's annotations names by an attribute's value."""
    wanted = {
        span.span_id: (span.execution_id, link["key_match"], link["value_match"])
        for span in saying
        if span.name == AGENT_LIGHTNING
        for link in _numbered(LINK, span).values()
        if link.keys() >= {"key_match", "value_match"}
    }
    keys = sorted({key for _, key, _ in wanted.values()})
    executions = sorted({execution for execution, _, _ in wanted.values()})
    others = spans.filter(
        pl.col("execution_id").is_in(executions), pl.col("name") != AGENT_LIGHTNING
    )
    found: dict[tuple[str, str, str], str] = {}
    for span in iter_spans(others) if keys else ():
        for key in keys:
            found.setdefault((span.execution_id, key, span.get(key) or ""), span.span_id)
    return {span: found[place] for span, place in wanted.items() if place in found}
