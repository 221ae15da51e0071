"""Evaluations: scores that a runner, an agent or another process gave an execution or a call.

A score is written in one of these ways:

- OpenTelemetry: `gen_ai.evaluation.*` on a span, a span event or a log record named
  `gen_ai.evaluation.result`.
- OpenInference: `{annotations,evaluations}.N.{annotation,evaluation}.{name,score}` on any span
  judge that span; with the prefix `trace.` or `session.` the whole execution.
- agent-lightning 0.3: `agentlightning.reward.N.{name,value}` on its annotation spans; an attribute
  in `agentlightning.link.N.{key_match,value_match}` identifies the judged span.

Of several with the same execution, name, source and target the last counts; the others are drops.
One with the label `withdrawn` and no score withdraws those before it.
Evaluations of the same moment that differ contradict each other, and none of them counts.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from ltrain_instrument import attributes
from ltrain_instrument.feedback import MAX_SCORE, WITHDRAWN
from ltrain_transforms.tables import DROPS, EVALUATIONS
from ltrain_transforms.traces import Role, Span, iter_spans, parse_index

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

COMPONENTS = ("llm", "tool", "retrieval", "embedding")
"""Kinds of calls that an evaluation without a scope judges; inside an agent or node, it judges the
execution."""

FAULTS = {
    "no_value": "evaluation '{}' has no score that is a number",
    "not_finite": "evaluation '{}' has a score that is NaN, infinite or beyond 1e100",
    "no_target": "evaluation '{}' judges a call, and neither links to one nor lies in one",
    "contradictory": "evaluations '{}' of the same target, moment and source differ: none counts",
    "withdrawn": "it withdraws earlier evaluations '{}' of the same target and source",
    "repeated": "a later evaluation '{}' of the same target takes its place",
}

UNSUPPORTED = "json: unsupported value: "
"""The ClickHouse exporter's prefix of numbers that JSON lacks: NaN, +Inf, -Inf."""

Owners = Mapping[str, tuple[str, str]]
"""Call and its kind, by each of the call's spans."""

SCORES = pl.Schema({**EVALUATIONS.schema, "step": pl.Int32()})
"""`EVALUATIONS` with `Score.step`."""


@dataclass(frozen=True, slots=True)
class Score:
    """One score, before its value and target are checked."""

    name: str
    value: str | None
    scope: str | None
    """call, rollout, or None: the kind of the span that it judges decides."""
    candidates: Sequence[str]
    """Ids of spans that it may judge, the likeliest first."""
    role: str
    """Who wrote it: one of `sender_roles.Role`."""
    evidence: str
    """The span that holds it; of a log record outside of spans, a description."""
    time: int
    """Nanoseconds since the epoch."""
    step: int = 0
    """Its order among the scores of one span: its own first, then those of its events."""
    explanation: str = ""
    """Why, in a sentence; '' if its writer does not tell."""
    withdraws: bool = False
    """Whether it withdraws those before it."""


def read_evaluations(spans: pl.DataFrame, calls: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the `EVALUATIONS` that count, and the others as `DROPS`."""
    scored = list(iter_spans(spans.filter(_may_have_scores())))
    owners, linked = _owners(calls), _linked_spans(scored, spans)
    rows = [
        (span.execution_id, *_judgement(score, owners))
        for span in scored
        for score in _scores(span, linked.get(span.span_id, ""))
    ]
    marked = _mark_repeated(pl.DataFrame(rows, SCORES, orient="row"))
    counts = pl.col("fault").is_null()
    counted = EVALUATIONS.select(marked.filter(counts).lazy()).collect()
    return counted, _to_drops(marked.filter(~counts))


def explained_scores(spans: pl.DataFrame) -> dict[str, Score]:
    """Return the scores with an explanation that are alone in their evidence, by the evidence."""
    scores: dict[str, list[Score]] = {}
    for span in iter_spans(spans.filter(_may_have_scores())):
        for score in _scores(span, ""):
            scores.setdefault(score.evidence, []).append(score)
    alone = {evidence: found[0] for evidence, found in scores.items() if len(found) == 1}
    return {evidence: score for evidence, score in alone.items() if score.explanation}


def _may_have_scores() -> pl.Expr:
    """Return whether a row of `SPANS` may hold a score."""
    named = pl.col("name").is_in([attributes.SPAN_EVALUATION, AGENT_LIGHTNING])
    in_events, in_logs = (
        pl.col(column).str.contains(attributes.SPAN_EVALUATION, literal=True)
        for column in ("events", "logs")
    )
    is_annotation = pl.element().str.contains(ANNOTATION_PREFIX)
    annotated = pl.col("attributes").map.keys().list.eval(is_annotation).list.any()
    return named | in_events | in_logs | annotated


def _scores(span: Span, linked: str) -> Iterator[Score]:
    """Yield every score in the attributes, events, annotations and log records of `span`.

    Args:
        linked: the id of the span that agent-lightning's link names, or an empty string.
    """
    own, around = [span.span_id, linked], [*span.links, span.parent_id or "", linked]
    is_evaluation = span.name == attributes.SPAN_EVALUATION
    if is_evaluation:
        yield _evaluation(span, span.attributes, around)
    yield from _annotations(span, around if is_evaluation else own)
    if span.name == AGENT_LIGHTNING:
        yield from _agent_lightning_rewards(span, around)
    for step, (name, values) in enumerate(span.events, 1):
        if name == attributes.SPAN_EVALUATION:  # an event judges the span that it is on
            yield replace(_evaluation(span, values, own), step=step)
    for log in span.logs:
        if log.name == attributes.SPAN_EVALUATION:  # a log record judges the span around it
            inside = span.span_id if log.in_span else ""
            evidence = inside or f"log of {span.execution_id} at {log.time}"
            score = _evaluation(span, log.attributes, [inside])
            yield replace(score, role=log.role, evidence=evidence, time=log.time)


def _score(
    span: Span, name: str | None, value: str | None, scope: str | None, candidates: Sequence[str]
) -> Score:
    return Score(name or "reward", value, scope, candidates, span.role, span.span_id, span.start)


def _evaluation(span: Span, values: Mapping[str, str], candidates: Sequence[str]) -> Score:
    """Read the attributes of an OpenTelemetry evaluation."""
    name, value, scope = (
        values.get(key)
        for key in (
            attributes.EVALUATION_NAME,
            attributes.EVALUATION_VALUE,
            attributes.REWARD_SCOPE,
        )
    )
    score = _score(span, name, value, scope, candidates)
    label = values.get(attributes.EVALUATION_LABEL)
    explanation = values.get(attributes.EVALUATION_EXPLANATION, "")
    withdraws = value is None and label == WITHDRAWN
    return replace(score, explanation=explanation, withdraws=withdraws)


def _annotations(span: Span, candidates: Sequence[str]) -> Iterator[Score]:
    for (of, _), fields in sorted(_numbered_fields(ANNOTATION, span).items()):
        scope = "rollout" if of else span.get(attributes.REWARD_SCOPE)
        yield _score(span, fields.get("name"), fields.get("score"), scope, candidates)


def _agent_lightning_rewards(span: Span, candidates: Sequence[str]) -> Iterator[Score]:
    for _, fields in sorted(_numbered_fields(REWARD, span).items()):
        yield _score(span, fields.get("name"), fields.get("value"), None, candidates)


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


def _linked_spans(scored: Sequence[Span], spans: pl.DataFrame) -> dict[str, str]:
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


def _owners(calls: pl.DataFrame) -> Owners:
    spread = calls.select("source_spans", "call_id", "kind").explode("source_spans")
    return {span: (call, kind) for span, call, kind in spread.iter_rows()}


def _judgement(score: Score, owners: Owners) -> tuple[object, ...]:
    """Return the row of `SCORES` without its execution: the judged call, the value, the fault."""
    call, fault = _target(score, owners)
    if score.withdraws:
        value, fault = None, fault or "withdrawn"
    else:
        value, fault = _number(score.value, fault)
    source = score.role if score.role in (Role.RUNNER, Role.PERSON) else Role.AGENT
    return (call, score.name, str(source), value, score.evidence, score.time, fault, score.step)


def _target(score: Score, owners: Owners) -> tuple[str | None, str | None]:
    """Return the judged call, None for the whole execution, and the fault of the target if any."""
    call, kind = next((owners[one] for one in score.candidates if one in owners), (None, None))
    if score.scope == "rollout" or (score.scope != "call" and kind not in COMPONENTS):
        call = None
    return call, "no_target" if score.scope == "call" and call is None else None


def _number(text: str | None, fault: str | None) -> tuple[float | None, str | None]:
    try:
        value = float((text or "").removeprefix(UNSUPPORTED))
    except ValueError:
        return None, "no_value"
    return (value, fault) if abs(value) <= MAX_SCORE else (None, "not_finite")


def _mark_repeated(scores: pl.DataFrame) -> pl.DataFrame:
    """Set `fault` of scores that a later one replaces, and of those of one moment that differ."""
    target = ("execution_id", "call_id", "name", "source")
    start, step, valid = pl.col("start"), pl.col("step"), pl.col("fault").is_null()
    placed = valid | (pl.col("fault") == "withdrawn")
    newest = start == start.filter(placed).max().over(target)
    ordered = scores.sort("start", "step", "evidence", "value", maintain_order=True)
    marked = ordered.with_columns(newest=placed & newest).with_columns(
        latest=pl.col("newest") & (step == step.filter("newest").max().over(target))
    )
    same_moment = (*target, "latest")
    differ = pl.col("value").n_unique().over(same_moment) > 1
    copy = pl.int_range(pl.len()).reverse().over(same_moment) > 0
    fault = (
        pl.when(~valid).then("fault")
        .when(~pl.col("latest") | (copy & ~differ)).then(pl.lit("repeated"))
        .when(differ).then(pl.lit("contradictory"))
    )  # fmt: skip
    return marked.with_columns(fault=fault)


def _to_drops(faulty: pl.DataFrame) -> pl.DataFrame:
    sentence = pl.col("fault").replace_strict(FAULTS, return_dtype=pl.String)
    drops = faulty.select(
        stage=pl.lit("rewards"),
        id="evidence",
        reason="fault",
        detail=sentence.str.replace("{}", pl.col("name"), literal=True),
    )
    return DROPS.select(drops.lazy()).collect()
