"""Attach the log records of the store to the spans that contain them: messages, evaluations.

Only OpenTelemetry's gen_ai events are read, and with `source.logs` the records of a severity and
above: those of the executions of the given spans, and those without a trace of their processes. A
record that names no stored span is attached to the first span of its execution, with the spans in
which it may have been written (see `running_spans`).
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson
import polars as pl

from ltrain_collector.errors import QueryFailed
from ltrain_collector.store import Store
from ltrain_transforms.calls import resolve_logs
from ltrain_transforms.source.call_keys import PROCESS_SQL
from ltrain_transforms.source.running_spans import (
    RESOURCE_SQL,
    Key,
    Place,
    RunningSpan,
    innermost,
    spans_of_resources,
)
from ltrain_transforms.tables import DROPS, LOGS
from ltrain_transforms.traces import ELSEWHERE, TRUSTED, Role, with_roles

SEVERITIES = {"debug": 5, "info": 9, "warn": 13, "error": 17}
"""The least severity number of each level, of OpenTelemetry's logs data model."""
NO_SEVERITY = 255
"""Above the severity of any record."""

_NAME = "if(EventName != '', EventName, LogAttributes['event.name'])"
_SELECT = f"""SELECT
    RolloutId AS rollout_id, toString(Attempt) AS attempt, TraceId AS trace_id, SpanId AS span_id,
    toUnixTimestamp64Nano(Timestamp) AS time, ScopeName AS scope, {PROCESS_SQL} AS process,
    {RESOURCE_SQL} AS resource, toString(Sender) AS sender, {_NAME} AS name, Body AS body,
    toJSONString(LogAttributes) AS attributes, toInt32(SeverityNumber) AS severity
FROM otel.logs
WHERE"""
_ORDER = "ORDER BY time, trace_id, span_id, resource, name, body, attributes"
_OF_EXECUTIONS = f"""{_SELECT}
    (startsWith({_NAME}, 'gen_ai.') OR SeverityNumber >= {{severity:UInt8}})
    AND (RolloutId IN {{rollouts:Array(String)}}
        OR RolloutId = '' AND TraceId IN {{traces:Array(String)}})
{_ORDER}"""
_OF_PROCESSES = f"""{_SELECT}
    RolloutId = '' AND TraceId = '' AND SeverityNumber >= {{severity:UInt8}}
    AND Timestamp >= fromUnixTimestamp64Nano({{first:Int64}})
    AND Timestamp <= fromUnixTimestamp64Nano({{last:Int64}})
    AND process IN {{processes:Array(String)}}
{_ORDER}"""
KEY = ("execution_id", "trace_id", "span_id")
_INTERVAL = ("trace_id", "span_id", "parent_id", "start", "end")
PLACED = pl.Schema({**LOGS.schema, "among": pl.List(pl.String())})
"""`LOGS` with the spans in which a record may have been written; null if it names its span."""


def attach_logs(
    store: Store,
    spans: pl.DataFrame,
    trust: Sequence[str] = TRUSTED,
    severity: str | None = None,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Fill `logs` of resolved `SPANS`; return them, and the unresolved records as `DROPS`.

    Args:
        trust: the senders whose records may be a runner's.
        severity: `source.logs`.
    """
    if spans.is_empty():
        return spans, DROPS.empty()
    least = SEVERITIES.get(severity or "", NO_SEVERITY)
    try:
        records, unresolved = _of_executions(store, spans, trust, least)
        if least != NO_SEVERITY:
            records = pl.concat([records, _of_processes(store, spans, trust, least)])
    except QueryFailed as error:
        if error.table_missing:  # the store holds only traces
            return spans, DROPS.empty()
        raise
    if records.is_empty():
        return spans, unresolved
    cells = _log_cells(records, spans)
    joined = spans.drop("logs").join(cells, KEY, "left", maintain_order="left")
    return joined.select(spans.columns), unresolved


def _of_executions(
    store: Store, spans: pl.DataFrame, trust: Sequence[str], severity: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the `PLACED` records that name an execution or a trace, and unresolved `DROPS`."""
    params: dict[str, object] = {
        "severity": severity,
        "rollouts": spans["rollout_id"].drop_nulls().unique().to_list(),
        "traces": spans["trace_id"].unique().to_list(),
    }
    records, unresolved = resolve_logs(_query(store, _OF_EXECUTIONS, params, trust), spans)
    known = spans.select(KEY).unique()
    inside = records.join(known, KEY, "semi", maintain_order="left")
    loose = records.join(known, KEY, "anti", maintain_order="left")
    among = pl.Series("among", list(_spans_at(loose, spans)), PLACED["among"])
    return pl.concat([_placed(inside), _placed(loose, among)]), unresolved


def _query(store: Store, sql: str, params: dict[str, object], trust: Sequence[str]) -> pl.DataFrame:
    """Return records of the store as `LOGS`."""
    records = store.query(sql, params).with_columns(pl.col(pl.String).replace("", None))
    named = records.with_columns(execution_id=pl.lit(None, pl.String))
    return LOGS.select(with_roles(named, trust).lazy()).collect()


def _placed(records: pl.DataFrame, among: pl.Series | None = None) -> pl.DataFrame:
    spans = pl.lit(None, PLACED["among"]).alias("among") if among is None else among
    return records.with_columns(spans).select(PLACED.names())


def _of_agents(spans: pl.DataFrame) -> pl.DataFrame:
    return spans.filter(pl.col("role").is_in([Role.AGENT, Role.CAPTURE]))


def _parents(spans: pl.DataFrame) -> dict[Key, Key]:
    rows = spans.select("trace_id", "span_id", "parent_id").drop_nulls().iter_rows()
    return {(trace, span): (trace, parent) for trace, span, parent in rows}


def _spans_at(records: pl.DataFrame, spans: pl.DataFrame) -> Iterator[list[str]]:
    """Yield the spans of its trace, else its execution, in which each record may be.

    If the record's process wrote any of them, only the spans of this process count.
    """
    executions = records["execution_id"].unique()
    concerned = spans.filter(pl.col("execution_id").is_in(executions.implode()))
    agents = _of_agents(concerned).select("execution_id", "process", *_INTERVAL)
    running = [
        RunningSpan((within, of), *span)
        for execution, process, *span in agents.iter_rows()
        for within in (execution, span[0])
        for of in {"", process or ""}
    ]
    places = {span.place for span in running}
    rows = records.select("trace_id", "execution_id", "process", "time").iter_rows()
    moments = [
        (_place(places, trace or "", execution, process or ""), time)
        for trace, execution, process, time in rows
    ]
    found = innermost(running, moments, _parents(concerned))
    yield from ([span for _, span in found[moment]] for moment in moments)


def _place(places: Collection[Place], trace: str, execution: str, process: str) -> Place:
    within = trace if (trace, "") in places else execution
    return (within, process) if (within, process) in places else (within, "")


def _of_processes(
    store: Store, spans: pl.DataFrame, trust: Sequence[str], severity: int
) -> pl.DataFrame:
    """Return the `PLACED` records without a trace that processes of the spans wrote meanwhile.

    A record is in each execution with a span that ran then in its resource.
    """
    has_host = ~pl.col("process").str.starts_with("/")  # else it is the number of a process alone
    own = _of_agents(spans).filter(has_host)
    if own.is_empty():
        return PLACED.to_frame()
    processes = own["process"].unique().sort().to_list()
    interval: dict[str, object] = {"first": own["start"].min(), "last": own["end"].max()}
    params = {"severity": severity, "processes": processes, **interval}
    records = _query(store, _OF_PROCESSES, params, trust)
    moments = _moments(records, "process")
    running = [
        RunningSpan(("", process), *span)
        for process, *span in own.select("process", *_INTERVAL).iter_rows()
    ]
    near = innermost(running, moments, {})
    records = records.filter(pl.Series([bool(near[one]) for one in moments], dtype=pl.Boolean))
    if records.is_empty():  # else every span of the store is searched
        return PLACED.to_frame()
    moments = _moments(records, "resource")
    found = innermost(spans_of_resources(store, processes, moments), moments, _parents(spans))
    executions = {(trace, span): one for one, trace, span in spans.select(KEY).iter_rows()}
    rows = [
        (index, execution, among)
        for index, moment in enumerate(moments)
        for execution, among in _by_execution(found[moment], executions)
    ]
    schema = pl.Schema(
        {"index": pl.UInt32(), "execution_id": pl.String(), "among": PLACED["among"]}
    )
    placed = pl.DataFrame(rows, schema, orient="row")
    numbered = records.drop("execution_id").with_row_index()
    return placed.join(numbered, "index", maintain_order="left").select(PLACED.names())


def _moments(records: pl.DataFrame, place: str) -> list[tuple[Place, int]]:
    return [(("", of), time) for of, time in records.select(place, "time").iter_rows()]


def _by_execution(
    spans: Iterable[Key], executions: Mapping[Key, str]
) -> Iterator[tuple[str, list[str]]]:
    """Yield each execution with its spans of those that ran, and `ELSEWHERE` for the others."""
    of_each = defaultdict[str | None, list[str]](list)
    for span in spans:
        of_each[executions.get(span)].append(span[1])
    others = [ELSEWHERE] if len(of_each) > 1 else []
    for execution, own in of_each.items():
        if execution is not None:
            yield execution, [*own, *others]


def _log_cells(records: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the cell `logs` of each span that has one."""
    first = spans.group_by("execution_id", maintain_order=True).first()
    placed = records.sort("time", maintain_order=True).join(
        first.select("execution_id", first_trace="trace_id", first_span="span_id"),
        "execution_id",
        maintain_order="left",
    )
    cells: dict[tuple[str, str, str], list[object]] = {}
    for row in placed.iter_rows(named=True):
        in_span = row["among"] is None
        names = ("trace_id", "span_id") if in_span else ("first_trace", "first_span")
        fields: list[Any] = [row[name] for name in ("name", "body", "attributes", "time", "role")]
        fields += [in_span, row["severity"], row["among"] or []]
        cells.setdefault((row["execution_id"], *(row[name] for name in names)), []).append(fields)
    rows = [(*ids, orjson.dumps(logs).decode()) for ids, logs in cells.items()]
    schema = {**dict.fromkeys(KEY, pl.String()), "logs": pl.String()}
    return pl.DataFrame(rows, schema, orient="row")
