"""Evaluation spans: what a runner, an agent or anyone else said an execution or a call is worth.

Of several with the same execution, name, source and target the last counts; the others are drops.
"""

import math
from collections.abc import Callable, Iterator, Mapping

import polars as pl

from ltrain_instrument import attributes
from ltrain_transforms.spans import Span, each
from ltrain_transforms.tables import DROPS, EVALUATIONS

COMPONENTS = ("llm", "tool", "retrieval", "embedding")
"""Kinds that an evaluation without a scope may judge; in an agent or node it judges the whole."""

FAULTS = {
    "no_value": "evaluation '{}' has no finite score",
    "no_target": "evaluation '{}' judges a call, and neither links to one nor lies in one",
    "repeated": "a later evaluation '{}' of the same target counts",
}


def evaluations(spans: pl.DataFrame, calls: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Give the evaluations that count, and the others as `DROPS`."""
    said = pl.col("name") == attributes.SPAN_EVALUATION
    in_events = pl.col("events").str.contains(attributes.SPAN_EVALUATION, literal=True)
    spread = calls.select("source_spans", "call_id", "kind").explode("source_spans")
    owners = {span: (call, kind) for span, call, kind in spread.iter_rows()}
    rows = [row for span in each(spans.filter(said | in_events)) for row in _rows(span, owners)]
    found = pl.DataFrame(rows, EVALUATIONS.schema, orient="row")
    later = (
        pl.int_range(pl.len()).reverse().over("execution_id", "call_id", "name", "source", "fault")
    )
    marked = found.sort("start", "evidence").with_columns(
        fault=pl.when(later > 0).then(pl.coalesce("fault", pl.lit("repeated"))).otherwise("fault")
    )
    counts = pl.col("fault").is_null()
    return marked.filter(counts), _dropped(marked.filter(~counts))


Owners = Mapping[str, tuple[str, str]]
"""Call and its kind, by each of the call's spans."""


def _rows(span: Span, owners: Owners) -> Iterator[tuple[object, ...]]:
    if span.name == attributes.SPAN_EVALUATION:
        yield _row(span, span.attributes.get, [*span.links, span.parent_id or ""], owners)
    for name, values in span.events:
        if name == attributes.SPAN_EVALUATION:  # an event judges the span that it is on
            yield _row(span, values.get, [span.span_id], owners)


def _row(
    span: Span, get: Callable[[str], str | None], pointers: list[str], owners: Owners
) -> tuple[object, ...]:
    scope = get(attributes.REWARD_SCOPE)
    call, kind = next((owners[one] for one in pointers if one in owners), (None, None))
    if scope == "rollout" or (scope != "call" and kind not in COMPONENTS):
        call = None
    value = _finite(get(attributes.EVALUATION_VALUE))
    fault = "no_value" if value is None else None
    if scope == "call" and call is None:
        fault = "no_target"
    source = "runner" if span.scope == attributes.SCOPE_RUNNER else "agent"
    name = get(attributes.EVALUATION_NAME) or "reward"
    return span.execution_id, call, name, source, value, span.span_id, span.start, fault


def _finite(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _dropped(rest: pl.DataFrame) -> pl.DataFrame:
    sentence = pl.col("fault").replace_strict(FAULTS, return_dtype=pl.String)
    drops = rest.select(
        stage=pl.lit("rewards"),
        id="evidence",
        reason="fault",
        detail=sentence.str.replace("{}", pl.col("name"), literal=True),
    )
    return DROPS.select(drops.lazy()).collect()
