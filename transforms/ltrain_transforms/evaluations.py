"""What a runner, an agent or anyone else said an execution or a call is worth.

It is said by a span named `gen_ai.evaluation.result`, by a span event or a log record of that name,
by OpenInference's annotations on any span, or by agent-lightning's annotation spans. Of several
with the same execution, name, source and target the last counts; the others are drops. Two that
differ and were said at the same moment contradict each other, and neither counts.
"""

from collections.abc import Iterator, Mapping, Sequence

import polars as pl

from ltrain_instrument import attributes
from ltrain_transforms.annotations import AGENT_LIGHTNING, MARKED, Statement, linked, statements
from ltrain_transforms.roles import Role
from ltrain_transforms.spans import Span, iter_spans
from ltrain_transforms.tables import DROPS, EVALUATIONS

COMPONENTS = ("llm", "tool", "retrieval", "embedding")
"""Kinds that an evaluation without a scope may judge; in an agent or node it judges the whole."""

FAULTS = {
    "no_value": "evaluation '{}' has no score that is a number",
    "not_finite": "evaluation '{}' has a score that is NaN, infinite or beyond 1e100",
    "no_target": "evaluation '{}' judges a call, and neither links to one nor lies in one",
    "contradictory": "evaluations '{}' of the same target, moment and source differ: none counts",
    "repeated": "a later evaluation '{}' of the same target takes its place",
}

LARGEST = 1e100
"""Largest score that counts: the deviation of larger ones overflows."""

NO_JSON = "json: unsupported value: "
"""What the ClickHouse exporter writes before a number that JSON has not: NaN, +Inf, -Inf."""

Owners = Mapping[str, tuple[str, str]]
"""Call and its kind, by each of the call's spans."""

FOUND = pl.Schema({**EVALUATIONS.schema, "step": pl.Int32()})
"""`EVALUATIONS` with the order of what one span said: itself first, then its events."""


def evaluations(spans: pl.DataFrame, calls: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Give the evaluations that count, and the others as `DROPS`."""
    named = pl.col("name").is_in([attributes.SPAN_EVALUATION, AGENT_LIGHTNING])
    in_events = pl.col("events").str.contains(attributes.SPAN_EVALUATION, literal=True)
    marked = pl.element().str.contains(MARKED)
    annotated = pl.col("attributes").map.keys().list.eval(marked).list.any()
    saying = list(iter_spans(spans.filter(named | in_events | annotated)))
    owners = _owners(calls)
    answered = linked(saying, spans)
    rows = [row for span in saying for row in _rows(span, owners, answered)]
    logged = pl.col("logs").str.contains(attributes.SPAN_EVALUATION, literal=True)
    rows += [row for span in iter_spans(spans.filter(logged)) for row in _of_logs(span, owners)]
    judged = _judged(pl.DataFrame(rows, FOUND, orient="row"))
    counts = pl.col("fault").is_null()
    return EVALUATIONS.select(judged.filter(counts).lazy()).collect(), _dropped(
        judged.filter(~counts)
    )


def _owners(calls: pl.DataFrame) -> Owners:
    spread = calls.select("source_spans", "call_id", "kind").explode("source_spans")
    return {span: (call, kind) for span, call, kind in spread.iter_rows()}


def _rows(span: Span, owners: Owners, answered: Mapping[str, str]) -> Iterator[tuple[object, ...]]:
    source = _source(span.role)
    for said in statements(span):
        pointers = [*said.pointers, answered.get(span.span_id, "")]
        call, fault = _target(said, pointers, owners)
        value, fault = _number(said.value, fault)
        yield (
            *(span.execution_id, call, said.name, source, value, span.span_id, span.start, fault),
            said.step,
        )


def _of_logs(span: Span, owners: Owners) -> Iterator[tuple[object, ...]]:
    """Read the log records that are evaluations; each judges the span it was written in."""
    for log in span.logs:
        if log.name == attributes.SPAN_EVALUATION:
            inside = span.span_id if log.in_span else ""
            said = Statement.of_evaluation(log.attributes, [inside])
            call, fault = _target(said, said.pointers, owners)
            value, fault = _number(said.value, fault)
            source = _source(log.role)
            evidence = inside or f"log of {span.execution_id} at {log.time}"
            yield (span.execution_id, call, said.name, source, value, evidence, log.time, fault, 0)


def _source(role: str) -> str:
    return "runner" if role == Role.RUNNER else "agent"


def _target(
    said: Statement, pointers: Sequence[str], owners: Owners
) -> tuple[str | None, str | None]:
    """Find the call that is judged, null for the whole execution, and what is wrong with that."""
    call, kind = next((owners[one] for one in pointers if one in owners), (None, None))
    if said.scope == "rollout" or (said.scope != "call" and kind not in COMPONENTS):
        call = None
    return call, "no_target" if said.scope == "call" and call is None else None


def _number(text: str | None, fault: str | None) -> tuple[float | None, str | None]:
    try:
        value = float((text or "").removeprefix(NO_JSON))
    except ValueError:
        return None, "no_value"
    return (value, fault) if abs(value) <= LARGEST else (None, "not_finite")


def _judged(found: pl.DataFrame) -> pl.DataFrame:
    """Mark what a later word replaces, and the words of one moment that differ."""
    target = ("execution_id", "call_id", "name", "source")
    start, step, sound = pl.col("start"), pl.col("step"), pl.col("fault").is_null()
    newest = start == start.filter(sound).max().over(target)
    ordered = found.sort("start", "step", "evidence", "value", maintain_order=True)
    at_last = ordered.with_columns(newest=sound & newest).with_columns(
        latest=pl.col("newest") & (step == step.filter("newest").max().over(target))
    )
    alike = (*target, "latest")
    differ = pl.col("value").n_unique().over(alike) > 1
    copy = pl.int_range(pl.len()).reverse().over(alike) > 0
    fault = (
        pl.when(~sound).then("fault")
        .when(~pl.col("latest") | (copy & ~differ)).then(pl.lit("repeated"))
        .when(differ).then(pl.lit("contradictory"))
    )  # fmt: skip
    return at_last.with_columns(fault=fault)


def _dropped(rest: pl.DataFrame) -> pl.DataFrame:
    sentence = pl.col("fault").replace_strict(FAULTS, return_dtype=pl.String)
    drops = rest.select(
        stage=pl.lit("rewards"),
        id="evidence",
        reason="fault",
        detail=sentence.str.replace("{}", pl.col("name"), literal=True),
    )
    return DROPS.select(drops.lazy()).collect()
