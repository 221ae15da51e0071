"""Rollouts and traces of a store by a filter, the newest first, and what they add up to.

An LLM call is often recorded by several instrumentations: its calls, tools and tokens are those of
the one that recorded the most. Traces without an LLM call, such as other requests to a service, are
only counted.
"""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import polars as pl

from ltrain_collector.access import TRUSTED_SENDERS
from ltrain_collector.admin.counted_scores import EVALUATED_UNIT_SQL, counted_scores
from ltrain_collector.errors import BadTime
from ltrain_collector.promoted_columns import MODE_SQL, SESSION_SQL, UNIT_SQL
from ltrain_collector.store import Store
from ltrain_instrument import attributes

_KIND = "lower(extract(toString(GenAiKind), '[^.]+$'))"
"""The last part of a dotted kind: doGenerate of ai.generateText.doGenerate."""
_LLM_KINDS = "('llm', 'generation', 'dogenerate', 'dostream', 'chat', 'completion')"
LLM = (
    f"(ScopeName != '{attributes.SCOPE_RUNNER}' AND ("
    "GenAiOp IN ('chat', 'text_completion', 'generate_content') "
    f"OR {_KIND} IN {_LLM_KINDS}))"
)
"""A model's call of the agent; those of a runner are of its judges."""
TOOL = f"(GenAiOp = 'execute_tool' OR {_KIND} IN ('tool', 'toolcall'))"
TOOL_NAME = (
    "arrayFirst(one -> one != '', [toString(ToolName), SpanAttributes['tool.name'], "
    "SpanAttributes['traceloop.entity.name'], SpanAttributes['mcp.tool.name'], "
    "SpanAttributes['ai.toolCall.name'], toString(SpanName)])"
)
AGENT = (
    "arrayFirst(one -> one != '', [SpanAttributes['gen_ai.agent.name'], "
    "SpanAttributes['langgraph.node'], SpanAttributes['langsmith.metadata.langgraph_node'], "
    "SpanAttributes['graph.node.id']])"
)
TOKENS = (
    "if(InTokens + OutTokens > 0, InTokens + OutTokens, "
    "toUInt32OrZero(SpanAttributes['llm.token_count.prompt']) "
    "+ toUInt32OrZero(SpanAttributes['llm.token_count.completion']))"
)
"""Some instrumentations write both names of the counts."""
CONTAINS_TEXT = (
    "arrayExists(value -> positionCaseInsensitiveUTF8(value, {text:String}) > 0, "
    "mapValues(SpanAttributes))"
)
IS_EVALUATION = f"SpanName = '{attributes.SPAN_EVALUATION}'"
EVALUATION_NAME = "if(EvaluationName = '', 'reward', toString(EvaluationName))"
BY_PERSON = (
    f"{IS_EVALUATION} AND ScopeName = '{attributes.SCOPE_PERSON}' "
    f"AND Sender IN ({', '.join(repr(str(sender)) for sender in TRUSTED_SENDERS)})"
)
"""Feedback by hand."""
_BY_HAND = counted_scores(
    "source = 'person' AND name = {unrated:String}", f"{EVALUATED_UNIT_SQL} AS unit"
)
RATED = f"(SELECT unit FROM ({_BY_HAND}))"
"""Rollouts and traces with a score of a name by hand that counts."""


@dataclass(frozen=True, slots=True)
class TraceFilter:
    """Which rollouts and traces are listed."""

    run: str | None = None
    mode: str | None = None
    since: str | None = None
    """ISO 8601."""
    errors: bool = False
    """Only those with a failed span."""
    without_calls: bool = False
    """Also those without an LLM call."""
    wave: int | None = None
    task: str | None = None
    text: str | None = None
    """Only those with a span whose attributes contain this text, in any case of letters."""
    unrated: str | None = None
    """Only those without feedback by hand of this name."""

    def condition(self) -> tuple[str, dict[str, object]]:
        """Return the SQL condition on spans, and its parameters.

        Raises:
            BadTime: `since` is no time.
        """
        sql, params = [f"NOT {IS_EVALUATION}"], dict[str, object]()
        if self.run is not None:
            sql.append("RunId = {run:String}")
            params["run"] = self.run
        if self.mode is not None:
            sql.append(f"{MODE_SQL} = {{mode:String}}")
            params["mode"] = self.mode
        if self.since is not None:
            try:
                since = datetime.fromisoformat(self.since)
            except ValueError as error:
                raise BadTime(
                    f"'{self.since}' is no ISO 8601 time, such as 2026-01-31 or "
                    "2026-01-31T12:00:00Z."
                ) from error
            sql.append("Timestamp >= parseDateTime64BestEffort({since:String}, 9)")
            params["since"] = since.isoformat()
        if self.wave is not None:
            sql.append("Wave = {wave:UInt32}")
            params["wave"] = self.wave
        if self.task is not None:
            sql.append("TaskId = {task:String}")
            params["task"] = self.task
        if self.text is not None:
            params["text"] = self.text
        if self.unrated is not None:
            params["unrated"] = self.unrated
        return " AND ".join(sql), params

    def having(self) -> str:
        """Return the SQL condition on the spans of one rollout or trace."""
        parts = ["true"]
        if self.errors:
            parts.append("countIf(StatusCode = 'Error') > 0")
        if not self.without_calls:
            parts.append(f"countIf({LLM}) > 0")
        if self.text is not None:
            parts.append(f"countIf({CONTAINS_TEXT}) > 0")
        if self.unrated is not None:
            parts.append(f"countIf(RolloutId IN {RATED} OR TraceId IN {RATED}) = 0")
        return " AND ".join(parts)


@dataclass(frozen=True, slots=True)
class Position:
    """The place of a rollout or trace in the list."""

    latest: int
    """When its last span began, in nanoseconds."""
    id: str


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
    """What all selected rollouts and traces add up to."""

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
    where, params = selection.condition()
    position, order = "true", "latest DESC, unit"
    if older_than is not None:
        position = "(latest, {id:String}) < ({latest:Int64}, unit)"
    elif newer_than is not None:
        position, order = "(latest, {id:String}) > ({latest:Int64}, unit)", "latest, unit DESC"
    if place := older_than or newer_than:
        params |= {"latest": place.latest, "id": place.id}
    newest = store.query(
        f"SELECT {UNIT_SQL} AS unit, toUnixTimestamp64Nano(max(Timestamp)) AS latest "
        f"FROM otel.spans WHERE {where} GROUP BY unit HAVING {selection.having()} AND {position} "
        f"ORDER BY {order} LIMIT {limit}",
        params,
    )
    return _read_details(store, newest.reverse() if newer_than is not None else newest)


def find_line(store: Store, selection: TraceFilter, unit: str) -> Line | None:
    """Return the rollout or trace of that id, if the filter selects it."""
    where, params = selection.condition()
    found = store.query(
        f"SELECT {UNIT_SQL} AS unit, toUnixTimestamp64Nano(max(Timestamp)) AS latest "
        f"FROM otel.spans WHERE {where} AND {_LISTED} GROUP BY unit HAVING {selection.having()}",
        params | {"units": [unit]},
    )
    return next(iter(_read_details(store, found)), None)


def _read_details(store: Store, units: pl.DataFrame) -> list[Line]:
    """Return the lines of `unit`, `latest`, in this order."""
    ids = units["unit"].to_list()
    if not ids:
        return []
    by_id = {row["unit"]: row for row in store.query(_DETAILS, {"units": ids}).to_dicts()}
    return [_line(by_id[unit], latest) for unit, latest in units.iter_rows()]


_LISTED = (
    "(RolloutId IN {units:Array(String)} OR RolloutId = '' AND TraceId IN {units:Array(String)})"
)
_PARTS = f"""SELECT
    {UNIT_SQL} AS unit, ScopeName AS scope,
    min(Timestamp) AS began, max(toUnixTimestamp64Nano(Timestamp) + toInt64(Duration)) AS ended,
    any(RolloutId) AS rollout, max({SESSION_SQL}) AS session,
    max(toString(RunId)) AS run, max(toString(Mode)) AS mode,
    groupUniqArrayIf({AGENT}, {AGENT} != '') AS agents,
    countIf({LLM}) AS llm, countIf({TOOL}) AS tool, sumIf({TOKENS}, {LLM}) AS tokens,
    countIf(StatusCode = 'Error') AS failed
FROM otel.spans
WHERE NOT {IS_EVALUATION}
    AND {_LISTED}
GROUP BY unit, scope"""
_SCORES = counted_scores(
    "rollout IN {units:Array(String)} OR rollout = '' AND trace IN {units:Array(String)}",
    f"{EVALUATED_UNIT_SQL} AS unit, name",
)
_DETAILS = f"""WITH judged AS (
    SELECT unit, groupArray((name, toString(last))) AS scores FROM (
        SELECT unit, name, argMax(score, (moment, source)) AS last
        FROM ({_SCORES}) GROUP BY unit, name
    ) GROUP BY unit
)
SELECT
    parts.unit AS unit, min(began) AS started,
    max(ended) - toUnixTimestamp64Nano(min(began)) AS nanoseconds,
    max(rollout) AS rollout, max(session) AS session, max(run) AS run, max(mode) AS mode,
    arraySort(groupUniqArrayArray(agents)) AS agents,
    max(llm) AS llm, max(tool) AS tool, max(tokens) AS tokens, max(failed) AS failed,
    toJSONString(any(judged.scores)) AS scores
FROM ({_PARTS}) AS parts LEFT JOIN judged ON judged.unit = parts.unit
GROUP BY unit"""


def _line(row: dict[str, Any], latest: int) -> Line:
    return Line(
        latest=latest,
        started=row["started"],
        kind="rollout" if row["rollout"] else "trace",
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
        rewards=dict(sorted(json.loads(row["scores"]))),
    )


def read_totals(store: Store, selection: TraceFilter) -> Totals:
    """Return what all selected rollouts and traces add up to."""
    where, params = selection.condition()
    by_scope = (
        f"SELECT ScopeName AS scope, {UNIT_SQL} AS unit, max({SESSION_SQL}) AS session, "
        f"countIf({LLM}) AS llm, sumIf({TOKENS}, {LLM}) AS tokens, countIf({TOOL}) AS tool, "
        "groupUniqArrayIf(toString(GenAiModel), GenAiModel != '') AS models, "
        f"groupUniqArrayIf({TOOL_NAME}, {TOOL}) AS tools, "
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
