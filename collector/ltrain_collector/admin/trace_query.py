"""Rollouts and traces of a store by a filter, the newest first, and their totals.

An LLM call is often recorded by several instrumentations: its calls, tools and tokens are those of
the one that recorded the most. Traces without an LLM call, such as other requests to a service, are
only counted.
"""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import polars as pl

from ltrain_collector.admin.counted_scores import EVALUATED_UNIT_SQL, counted_scores
from ltrain_collector.admin.newest_units import UnitSearch, units_condition
from ltrain_collector.admin.trace_filter import IS_EVALUATION, LLM, Position, TraceFilter
from ltrain_collector.promoted_columns import TOOL_NAME_SQL, TOOL_SQL, UNIT_SQL
from ltrain_collector.store import Store


@dataclass(frozen=True, slots=True)
class Line:
    """One rollout or trace."""

    latest: int
    """When its last span began, in nanoseconds."""
    started: datetime
    kind: str
    """rollout or trace."""
    id: str
    session: str
    run: str
    mode: str
    agents: list[str]
    llm_calls: int
    tool_calls: int
    tokens: int
    errors: int
    seconds: float
    rewards: dict[str, str]
    """The last score that counts of each evaluation of the whole, by its name."""

    @property
    def position(self) -> Position:
        return Position(self.latest, self.id)


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals of all selected rollouts and traces."""

    units: int
    """Rollouts and traces with an LLM call."""
    others: int
    """Those without one."""
    sessions: int
    llm_calls: int
    models: list[str]
    tokens: int
    tool_calls: int
    tools: list[str]
    errors: int


def read_lines(
    store: Store,
    selection: TraceFilter,
    limit: int,
    *,
    older_than: Position | None = None,
    newer_than: Position | None = None,
) -> list[Line]:
    """Return the newest rollouts and traces, the newest first.

    Args:
        older_than: only those that follow this position in the list.
        newer_than: only those before this position: the `limit` that are nearest to it.
    """
    found = UnitSearch(store, selection, older_than, newer_than).find(limit)
    return _read_details(store, found.reverse() if newer_than is not None else found)


def find_line(store: Store, selection: TraceFilter, unit: str) -> Line | None:
    """Return the rollout or trace of that id, if the filter selects it."""
    return next(iter(_read_details(store, UnitSearch(store, selection).find_one(unit))), None)


def _read_details(store: Store, units: pl.DataFrame) -> list[Line]:
    """Return the lines of the result of a search, in its order."""
    if units.is_empty():
        return []
    spans, params = units_condition(units)
    evaluations, _ = units_condition(units, ("run", "rollout", "trace"))
    counted = counted_scores(evaluations, f"{EVALUATED_UNIT_SQL} AS unit, name")
    details = store.query(_DETAILS.format(spans=spans), params)
    scores: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for unit, name, score in store.query(_SCORES.format(counted=counted), params).iter_rows():
        scores[unit][name] = score
    rows = units.join(details, "unit", maintain_order="left").to_dicts()
    return [_line(row, scores[row["unit"]]) for row in rows]


_DETAILS = f"""
SELECT unit, min(began) AS started, max(ended) - toUnixTimestamp64Nano(started) AS nanoseconds,
    max(session) AS session, max(run) AS run, max(mode) AS mode,
    arraySort(groupUniqArrayArray(agents)) AS agents,
    max(llm) AS llm, max(tool) AS tool, max(tokens) AS tokens, max(failed) AS failed
FROM (
    SELECT {UNIT_SQL} AS unit, ScopeName AS scope,
        min(Timestamp) AS began,
        max(toUnixTimestamp64Nano(Timestamp) + toInt64(Duration)) AS ended,
        max(SessionId) AS session, max(toString(RunId)) AS run, max(toString(Mode)) AS mode,
        groupUniqArrayIf(toString(AgentName), AgentName != '') AS agents,
        countIf({LLM}) AS llm, sumIf(InTokens + OutTokens, {LLM}) AS tokens,
        countIf({TOOL_SQL}) AS tool, countIf(StatusCode = 'Error') AS failed
    FROM otel.spans WHERE NOT {IS_EVALUATION} AND {{spans}}
    GROUP BY unit, scope
) GROUP BY unit
"""
_SCORES = """
SELECT unit, name, toString(argMax(score, (moment, source))) AS score
FROM ({counted}) GROUP BY unit, name ORDER BY unit, name
"""
"""The last score that counts of each evaluation."""


def _line(row: dict[str, Any], scores: dict[str, str]) -> Line:
    return Line(
        latest=row["latest"],
        started=row["started"],
        kind="rollout" if row["is_rollout"] else "trace",
        id=row["unit"],
        session=row["session"],
        run=row["run"],
        mode=row["mode"],
        agents=list(row["agents"]),
        llm_calls=row["llm"],
        tool_calls=row["tool"],
        tokens=row["tokens"],
        errors=row["failed"],
        seconds=row["nanoseconds"] / 1e9,
        rewards=scores,
    )


def read_totals(store: Store, selection: TraceFilter) -> Totals:
    """Return the totals of all selected rollouts and traces."""
    where, params = selection.condition()
    by_scope = (
        f"SELECT ScopeName AS scope, {UNIT_SQL} AS unit, max(SessionId) AS session, "
        f"countIf({LLM}) AS llm, sumIf(InTokens + OutTokens, {LLM}) AS tokens, "
        f"countIf({TOOL_SQL}) AS tool, "
        "groupUniqArrayIf(toString(GenAiModel), GenAiModel != '') AS models, "
        f"groupUniqArrayIf({TOOL_NAME_SQL}, {TOOL_SQL}) AS tools, "
        f"countIf(StatusCode = 'Error') AS failed FROM otel.spans WHERE {where} "
        "GROUP BY scope, unit"
    )
    by_unit = (
        "SELECT unit, max(session) AS session, max(llm) AS llm, max(tokens) AS tokens, "
        "max(tool) AS tool, max(failed) AS failed, groupUniqArrayArray(models) AS models, "
        f"groupUniqArrayArray(tools) AS tools FROM ({by_scope}) GROUP BY unit"
        + (" HAVING failed > 0" if selection.errors else "")
    )
    row = store.query(
        "SELECT countIf(llm > 0) AS units, countIf(llm = 0) AS others, "
        "uniqExactIf(session, session != '' AND llm > 0) AS sessions, "
        "sum(llm) AS llm_calls, arraySort(groupUniqArrayArray(models)) AS models, "
        "sum(tokens) AS tokens, sum(tool) AS tool_calls, "
        "arraySort(groupUniqArrayArray(tools)) AS tools, sum(failed) AS errors "
        f"FROM ({by_unit})",
        params,
    ).to_dicts()[0]
    return Totals(**row)
