"""`ltrain traces`: the rollouts and traces of a store, the newest first, and what they add up to.

An LLM call is often recorded by several instrumentations: its calls, tools and tokens are those of
the one that recorded the most. Traces without an LLM call, such as other requests to a service, are
only counted.
"""

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from ltrain_collector.errors import BadTime
from ltrain_collector.promoted_columns import MODE_SQL, SESSION_SQL, UNIT_SQL
from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_instrument.machine import visible

ID_CHARACTERS = 12
"""Characters of an id in the table; `ltrain show` finds it by its beginning."""

_KIND = "upper(SpanAttributes['openinference.span.kind'])"
_OTHER_KINDS = (
    "[SpanAttributes['langsmith.span.kind'], SpanAttributes['langfuse.observation.type'], "
    "SpanAttributes['agentops.span.kind'], SpanAttributes['traceloop.span.kind'], "
    "extract(SpanAttributes['ai.operationId'], '[^.]+$')]"
)
LLM = (
    f"(ScopeName != '{attributes.SCOPE_RUNNER}' AND ("
    "GenAiOp IN ('chat', 'text_completion', 'generate_content') "
    f"OR {_KIND} = 'LLM' OR SpanAttributes['llm.request.type'] IN ('chat', 'completion') "
    f"OR hasAny({_OTHER_KINDS}, ['llm', 'generation', 'doGenerate', 'doStream'])))"
)
"""A model's call of the agent; those of a runner are of its judges."""
TOOL = (
    f"(GenAiOp = 'execute_tool' OR {_KIND} = 'TOOL' "
    f"OR hasAny({_OTHER_KINDS}, ['tool', 'toolCall']))"
)
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
IS_EVALUATION = f"SpanName = '{attributes.SPAN_EVALUATION}'"
EVALUATION = (
    f"(if(SpanAttributes['{attributes.EVALUATION_NAME}'] = '', 'reward', "
    f"SpanAttributes['{attributes.EVALUATION_NAME}']), Timestamp, "
    f"SpanAttributes['{attributes.EVALUATION_VALUE}'])"
)


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
        return " AND ".join(sql), params

    def having(self) -> str:
        """Return the SQL condition on the spans of one rollout or trace."""
        parts = ["true"]
        if self.errors:
            parts.append("countIf(StatusCode = 'Error') > 0")
        if not self.without_calls:
            parts.append(f"countIf({LLM}) > 0")
        return " AND ".join(parts)


@dataclass(frozen=True, slots=True)
class Line:
    """One rollout or trace."""

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
    """The last value of each evaluation, by its name."""


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


def list_traces(dsn: str | None, selection: TraceFilter, limit: int, as_json: bool) -> None:
    """Print the newest rollouts and traces, their totals, and the next commands."""
    with Store.open(dsn, create=False) as store:
        lines, totals = read_lines(store, selection, limit), read_totals(store, selection)
    if as_json:
        report = {"traces": [asdict(line) for line in lines], "totals": asdict(totals)}
        print(json.dumps(report, indent=2, default=str))
        return
    if lines:
        # a trace can contain rich's markup, which must stay text
        Console(markup=False, emoji=False).print(_table(lines))
    print("\n".join(_advice(lines, totals, selection)))


def read_lines(store: Store, selection: TraceFilter, limit: int) -> list[Line]:
    """Return the newest rollouts and traces, the newest first."""
    where, params = selection.condition()
    newest = store.query(
        f"SELECT {UNIT_SQL} AS unit, max(Timestamp) AS latest FROM otel.spans WHERE {where} "
        f"GROUP BY unit HAVING {selection.having()} ORDER BY latest DESC, unit LIMIT {limit}",
        params,
    )["unit"].to_list()
    if not newest:
        return []
    by_id = {row["unit"]: row for row in store.query(_DETAILS, {"units": newest}).to_dicts()}
    return [_line(by_id[unit]) for unit in newest]


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
_DETAILS = f"""WITH judged AS (
    SELECT {UNIT_SQL} AS unit, groupArray({EVALUATION}) AS evaluations
    FROM otel.spans
    WHERE {IS_EVALUATION} AND {_LISTED}
    GROUP BY unit
)
SELECT
    parts.unit AS unit, min(began) AS started,
    max(ended) - toUnixTimestamp64Nano(min(began)) AS nanoseconds,
    max(rollout) AS rollout, max(session) AS session, max(run) AS run, max(mode) AS mode,
    arraySort(groupUniqArrayArray(agents)) AS agents,
    max(llm) AS llm, max(tool) AS tool, max(tokens) AS tokens, max(failed) AS failed,
    toJSONString(any(judged.evaluations)) AS evaluations
FROM ({_PARTS}) AS parts LEFT JOIN judged ON judged.unit = parts.unit
GROUP BY unit"""


def _line(row: dict[str, Any]) -> Line:
    latest: dict[str, tuple[str, str]] = {}
    for name, time, value in json.loads(row["evaluations"]):
        latest[name] = max(latest.get(name, ("", "")), (str(time), str(value)))
    return Line(
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
        rewards={name: value for name, (_, value) in sorted(latest.items())},
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


def _table(lines: list[Line]) -> Table:
    """Return a table of the columns that have a value in some line; it fits into 80 columns."""
    rows = [list(map(visible, _cells(line))) for line in lines]
    filled = [any(column) for column in zip(*rows, strict=True)]
    table = Table(box=None, pad_edge=False)
    table.padding = (0, 1, 0, 0)
    for name, used in zip(HEADINGS, filled, strict=True):
        if used:
            table.add_column(
                name,
                justify="right" if name in NUMBERS else "left",
                no_wrap=name in NUMBERS or name in ("started", "id"),
                overflow="fold",
            )
    for row in rows:
        table.add_row(*(cell for cell, used in zip(row, filled, strict=True) if used))
    return table


NUMBERS = ("llm", "tools", "tokens", "err", "s")
HEADINGS = ("started", "id", "run", "mode", "agents", *NUMBERS, "reward")


def _cells(line: Line) -> tuple[str, ...]:
    return (
        f"{line.started:%m-%d %H:%M:%S}",
        line.id[:ID_CHARACTERS],
        line.run,
        line.mode,
        ", ".join(line.agents),
        str(line.llm_calls),
        *(str(number or "") for number in (line.tool_calls, line.tokens, line.errors)),
        f"{line.seconds:.2f}",
        _rewards(line.rewards),
    )


def _rewards(values: dict[str, str]) -> str:
    """Return the first reward and the number of the others, which `ltrain show` lists."""
    if not values:
        return ""
    name = "reward" if "reward" in values else next(iter(values))
    others = f" +{len(values) - 1}" if len(values) > 1 else ""
    return f"{name} {values[name]}{others}"


def _advice(lines: list[Line], totals: Totals, selection: TraceFilter) -> list[str]:
    """Return the totals and the next commands, or how to get what is missing."""
    if not lines and not totals.others and selection != TraceFilter():
        return ["No trace matches these options; `ltrain traces` without options lists all."]
    if not lines and not totals.others:
        return [
            "No traces yet. Start the store and run your agent with it:",
            "  ltrain up",
            "  opentelemetry-instrument python agent.py",
        ]
    summary = (
        f"{totals.units} rollouts and traces, {totals.sessions} sessions; {totals.llm_calls} LLM "
        f"calls of {len(totals.models)} models with {totals.tokens} tokens; "
        f"{totals.tool_calls} tool calls ({', '.join(totals.tools) or 'no names'}); "
        f"{totals.errors} errors."
    )
    if not totals.units:
        return [
            f"{totals.others} traces, none with an LLM call (--all lists them): `ltrain doctor` in "
            "the agent's environment says which instrumentation is missing."
        ]
    others = f"{totals.others} traces without an LLM call are not listed; --all lists them."
    return [
        visible(summary),
        *([others] if totals.others and not selection.without_calls else []),
        f"Next: ltrain show {lines[0].id[:ID_CHARACTERS]}",
        "      ltrain init   # writes a recipe for these traces",
    ]
