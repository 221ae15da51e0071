"""One trace or session of traffic that no runner drove: its rows of every derived table."""

from typing import Literal

import polars as pl

from ltrain_collector.store import Store, quote_literal
from ltrain_instrument.identity import HELD_OUT_MODES
from ltrain_transforms.datasets import derive
from ltrain_transforms.recipe import Recipe, Source
from ltrain_transforms.show.rollout import RolloutTables, explain_evidence, own_tables
from ltrain_transforms.source import CreditScope, Selection, read_spans

TrafficKind = Literal["trace", "session"]

_COLUMNS: dict[TrafficKind, str] = {"trace": "TraceId", "session": "SessionId"}


def traffic_ids(store: Store, kind: TrafficKind, prefix: str, limit: int) -> list[str]:
    """Return the ids of this kind that begin with `prefix`, or only that which is equal to it."""
    sql = (
        f"SELECT DISTINCT {_COLUMNS[kind]} AS id FROM otel.spans "
        f"WHERE startsWith(id, {{prefix:String}}) AND id != '' ORDER BY id LIMIT {limit}"
    )
    ids = [str(id) for id in store.query(sql, {"prefix": prefix})["id"]]
    return [prefix] if prefix in ids else ids


def own_condition(kind: TrafficKind) -> str:
    """Return the SQL condition on the spans of the trace or session `{id:String}`."""
    return f"{_COLUMNS[kind]} = {{id:String}}"


def only_rollout(store: Store, trace: str) -> str | None:
    """Return the rollout of which all spans of a trace are, if they are of one."""
    sql = (
        "SELECT groupUniqArray(2)(RolloutId) AS rollouts FROM otel.spans "
        "WHERE TraceId = {trace:String} AND RolloutId != ''"
    )
    rollouts = store.query(sql, {"trace": trace})["rollouts"].item().to_list()
    return str(rollouts[0]) if len(rollouts) == 1 else None


def traffic_source(recipe: Recipe, kind: TrafficKind, identifier: str) -> Source:
    """Return the source that selects one trace or session."""
    condition = f"{_COLUMNS[kind]} = {quote_literal(identifier)}"
    unit = {"execution": kind, "where": condition, "run": None, "since": None, "until": None}
    return recipe.source.model_copy(update=unit)


def read_traffic(
    store: Store, recipe: Recipe, recipe_label: str, kind: TrafficKind, identifier: str
) -> RolloutTables | None:
    """Read all tables of a trace or a session; None if no execution has this id."""
    source = traffic_source(recipe, kind, identifier)
    spans, unresolved = read_spans(store, source, Selection(), metrics=recipe.metrics)
    recipe = recipe.model_copy(update={"source": source})
    derived = derive(spans, recipe, CreditScope(HELD_OUT_MODES))
    executions = derived.tables["executions"]
    # rollouts in the trace are executions of their own
    own = executions.filter(
        (pl.col("execution_id") == identifier) | pl.col("rollout_id").is_not_null()
    )
    if own.is_empty():
        return None
    ids = own["execution_id"]
    own_spans = spans.filter(pl.col("execution_id").is_in(ids.implode()))["span_id"]
    tables = own_tables(derived.tables, ids, own_spans, unresolved)
    outcomes = derived.outcomes.filter(pl.col("execution_id").is_in(ids.implode()))
    explanations = explain_evidence(spans, tables)
    return RolloutTables(identifier, tables, outcomes, recipe_label, kind, explanations)
