"""Evaluations: scores that a runner, an agent or another process gave an execution or a call.

An evaluation is a span named `gen_ai.evaluation.result`, a span event or a log record of that name,
OpenInference's annotations on any span, or an annotation span of agent-lightning. Of several with
the same execution, name, source and target the last counts; the others are drops. Evaluations of
the same moment that differ contradict each other, and none of them counts.
"""

from collections.abc import Iterator, Mapping, Sequence

import polars as pl

from ltrain_instrument import attributes
from ltrain_transforms.annotations import (
    AGENT_LIGHTNING,
    ANNOTATION_PREFIX,
    Score,
    find_linked_spans,
    read_scores,
)
from ltrain_transforms.roles import Role
from ltrain_transforms.spans import Span, iter_spans
from ltrain_transforms.tables import DROPS, EVALUATIONS

COMPONENTS = ("llm", "tool", "retrieval", "embedding")
"""Kinds of calls that an evaluation without a scope judges; inside an agent or node, it judges the
execution."""

FAULTS = {
    "no_value": "evaluation '{}' has no score that is a number",
    "not_finite": "evaluation '{}' has a score that is NaN, infinite or beyond 1e100",
    "no_target": "evaluation '{}' judges a call, and neither links to one nor lies in one",
    "contradictory": "evaluations '{}' of the same target, moment and source differ: none counts",
    "repeated": "a later evaluation '{}' of the same target takes its place",
}

MAX_SCORE = 1e100
"""Largest score that counts: the standard deviation of larger ones overflows."""

UNSUPPORTED = "json: unsupported value: "
"""The ClickHouse exporter's prefix of numbers that JSON lacks: NaN, +Inf, -Inf."""

Owners = Mapping[str, tuple[str, str]]
"""Call and its kind, by each of the call's spans."""

SCORES = pl.Schema({**EVALUATIONS.schema, "step": pl.Int32()})
"""`EVALUATIONS` with the order of the scores of one span: its own first, then those of its events.
"""


def read_evaluations(spans: pl.DataFrame, calls: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the `EVALUATIONS` that count, and the others as `DROPS`."""
    named = pl.col("name").is_in([attributes.SPAN_EVALUATION, AGENT_LIGHTNING])
    in_events = pl.col("events").str.contains(attributes.SPAN_EVALUATION, literal=True)
    is_annotation = pl.element().str.contains(ANNOTATION_PREFIX)
    annotated = pl.col("attributes").map.keys().list.eval(is_annotation).list.any()
    scored = list(iter_spans(spans.filter(named | in_events | annotated)))
    owners = _owners(calls)
    linked = find_linked_spans(scored, spans)
    rows = [row for span in scored for row in _span_rows(span, owners, linked)]
    in_logs = pl.col("logs").str.contains(attributes.SPAN_EVALUATION, literal=True)
    rows += [row for span in iter_spans(spans.filter(in_logs)) for row in _log_rows(span, owners)]
    marked = _mark_repeated(pl.DataFrame(rows, SCORES, orient="row"))
    counts = pl.col("fault").is_null()
    counted = EVALUATIONS.select(marked.filter(counts).lazy()).collect()
    return counted, _to_drops(marked.filter(~counts))


def _owners(calls: pl.DataFrame) -> Owners:
    spread = calls.select("source_spans", "call_id", "kind").explode("source_spans")
    return {span: (call, kind) for span, call, kind in spread.iter_rows()}


def _span_rows(
    span: Span, owners: Owners, linked: Mapping[str, str]
) -> Iterator[tuple[object, ...]]:
    source = _source(span.role)
    for score in read_scores(span):
        candidates = [*score.candidates, linked.get(span.span_id, "")]
        call, fault = _target(score, candidates, owners)
        value, fault = _number(score.value, fault)
        yield (
            *(span.execution_id, call, score.name, source, value, span.span_id, span.start, fault),
            score.step,
        )


def _log_rows(span: Span, owners: Owners) -> Iterator[tuple[object, ...]]:
    """Yield a row for each log record that is an evaluation; it judges the span around it."""
    for log in span.logs:
        if log.name == attributes.SPAN_EVALUATION:
            inside = span.span_id if log.in_span else ""
            score = Score.from_evaluation(log.attributes, [inside])
            call, fault = _target(score, score.candidates, owners)
            value, fault = _number(score.value, fault)
            source = _source(log.role)
            evidence = inside or f"log of {span.execution_id} at {log.time}"
            yield (span.execution_id, call, score.name, source, value, evidence, log.time, fault, 0)


def _source(role: str) -> str:
    return "runner" if role == Role.RUNNER else "agent"


def _target(
    score: Score, candidates: Sequence[str], owners: Owners
) -> tuple[str | None, str | None]:
    """Return the judged call, None for the whole execution, and the fault of the target if any."""
    call, kind = next((owners[one] for one in candidates if one in owners), (None, None))
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
    newest = start == start.filter(valid).max().over(target)
    ordered = scores.sort("start", "step", "evidence", "value", maintain_order=True)
    marked = ordered.with_columns(newest=valid & newest).with_columns(
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
