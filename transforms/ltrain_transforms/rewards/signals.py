"""Spans -> signals: spans, events, log records and exemplars of an agent in their calls.

A tool that returns normally may have had an HTTP 500, a database error or an exception inside. Such
a record is placed at the nearest call at or above its span; an exemplar names its span. A log
record of no span is placed at the call of the spans that ran then, if it is one only. What ltrain's
own processes write, and the messages of calls, are not signals.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import orjson
import polars as pl

from ltrain_transforms.recipe import Recipe, SignalReward
from ltrain_transforms.rewards.rule_contributions import named_columns
from ltrain_transforms.tables import DROPS, EXEMPLAR, SIGNALS, SPANS
from ltrain_transforms.traces import ELSEWHERE, Log, Role, Span, iter_spans

MAX_DEPTH = 100
"""Spans above a span that are searched for a call."""
MESSAGES = "gen_ai."
"""The beginning of the names of events that hold the messages of a call."""
READ_FROM: Mapping[str, tuple[str, ...]] = {
    "error_type": ("error.type", "exception.type"),
    "http_status": ("http.response.status_code", "http.status_code"),
    "grpc_status": ("rpc.grpc.status_code",),
    "db_status": ("db.response.status_code",),
    "exit_code": ("process.exit.code",),
}
"""The attributes of each column, of OpenTelemetry's conventions for errors, HTTP, RPC, databases
and processes; the older name is last."""
RECORD = pl.Schema(
    {
        "execution_id": pl.String(),
        "call_id": pl.String(),
        "record": pl.String(),
        "name": pl.String(),
        "scope": pl.String(),
        "failed": pl.Boolean(),
        "message": pl.String(),
        "severity": pl.Int32(),
        "seconds": pl.Float64(),
        "value": pl.Float64(),
        "unit": pl.String(),
        "time": pl.Int64(),
        "attributes": SPANS.schema["attributes"],
        "evidence": pl.String(),
    }
)
"""A signal before its attributes are read; `time` is its end, in nanoseconds since the epoch."""
SPAN = ("execution_id", "span_id")
REASONS = {"ambiguous": "a log record of no span, and several calls may have written it"}
"""Reasons of drops of an execution's log records, stage `rewards`."""


def read_signals(
    recipe: Recipe, spans: pl.DataFrame, calls: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the `SIGNALS` of whole executions, in order of time; none if no rule reads them.

    A column that no rule names is null. The `DROPS` are log records that several calls may have
    written.
    """
    rules = [reward for reward in recipe.reward if isinstance(reward, SignalReward)]
    if not rules or spans.is_empty():
        return SIGNALS.empty(), DROPS.empty()
    own = spans.filter(pl.col("role") == Role.AGENT)
    nearest = _nearest_calls(spans, calls)
    placed = own.join(nearest, SPAN, "left", maintain_order="left")
    others, ambiguous = _other_records(placed, nearest)
    records = pl.concat([_span_records(placed, calls), others])
    described = calls.select(
        "execution_id", "call_id", "kind", call_name="name", call_status="status"
    )
    found = records.sort("execution_id", "time", maintain_order=True).join(
        described, ["execution_id", "call_id"], "left", maintain_order="left"
    )
    signals = SIGNALS.select(_with_columns(found, named_columns(rules)).lazy()).collect()
    return signals, ambiguous


def _nearest_calls(spans: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return `SPAN` and `call_id`: the call of each span, else the nearest one above it."""
    of_calls = calls.select("execution_id", "call_id", at="source_spans").explode("at")
    parents = spans.select("execution_id", "parent_id", at="span_id").unique(["execution_id", "at"])
    searched = spans.select(*SPAN, at="span_id").unique(SPAN, maintain_order=True)
    found = []
    for _ in range(MAX_DEPTH):
        step = searched.join(of_calls, ["execution_id", "at"], "left")
        found.append(step.filter(pl.col("call_id").is_not_null()).select(*SPAN, "call_id"))
        open_ = step.filter(pl.col("call_id").is_null()).join(parents, ["execution_id", "at"])
        searched = open_.select(*SPAN, at="parent_id").filter(pl.col("at").is_not_null())
        if searched.is_empty():
            break
    return pl.concat(found)


def _span_records(placed: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return `RECORD` of the spans in a call that are none of its own spans."""
    of_calls = calls.select("execution_id", span_id="source_spans").explode("span_id")
    others = placed.join(of_calls, SPAN, "anti", maintain_order="left")
    return others.filter(pl.col("call_id").is_not_null()).select(
        *("execution_id", "call_id"),
        pl.lit("span").alias("record"),
        *("name", "scope"),
        (pl.col("status") == "Error").alias("failed"),
        "message",
        pl.lit(None, pl.Int32).alias("severity"),
        ((pl.col("end") - pl.col("start")) * 1e-9).alias("seconds"),
        pl.lit(None, pl.Float64).alias("value"),
        pl.lit(None, pl.String).alias("unit"),
        pl.col("end").alias("time"),
        "attributes",
        pl.col("span_id").alias("evidence"),
    )


def _other_records(
    placed: pl.DataFrame, nearest: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return `RECORD` of events, log records and exemplars, and ambiguous log records as `DROPS`.

    Args:
        nearest: the result of `_nearest_calls`.
    """
    of_span = pl.col("logs", "exemplars").is_not_null()
    with_any = placed.filter((pl.col("events") != "[]") | pl.any_horizontal(of_span))
    call_ids = with_any["call_id"].to_list()
    loose = _LooseLogs(nearest)
    rows = [
        row
        for span, call_id in zip(iter_spans(with_any), call_ids, strict=True)
        for row in (
            *_event_rows(span, call_id),
            *_log_rows(span, call_id, loose),
            *_exemplar_rows(span, call_id),
        )
    ]
    drops = [("rewards", execution, *loose.reason) for execution in loose.ambiguous]
    return (
        pl.DataFrame(rows, RECORD, orient="row"),
        pl.DataFrame(drops, DROPS.schema, orient="row"),
    )


def _event_rows(span: Span, call_id: str | None) -> Iterator[tuple[Any, ...]]:
    for name, values in span.events if call_id is not None else ():
        if not name.startswith(MESSAGES):
            message = values.get("exception.message")
            yield (
                *(span.execution_id, call_id, "event", name, span.scope, span.failed),
                *(message, None, None, None, None, span.end, dict(values), span.span_id),
            )


def _log_rows(span: Span, call_id: str | None, loose: "_LooseLogs") -> Iterator[tuple[Any, ...]]:
    for log in span.logs:
        if log.name.startswith(MESSAGES) or log.role != Role.AGENT:
            continue
        place = call_id if log.in_span else loose.call(span.execution_id, log)
        evidence = span.span_id if log.in_span else place or span.span_id
        yield (
            *(span.execution_id, place, "log", log.name, span.scope, None, log.body),
            *(log.severity, None, None, None, log.time, dict(log.attributes), evidence),
        )


def _exemplar_rows(span: Span, call_id: str | None) -> Iterator[tuple[Any, ...]]:
    for one in span.exemplars:
        if one.role == Role.AGENT:
            yield (
                *(span.execution_id, call_id, EXEMPLAR, one.name, one.scope, None, None, None),
                *(None, one.value, one.unit, one.time, dict(one.attributes), span.span_id),
            )


class _LooseLogs:
    """The calls of log records that name no span."""

    reason = ("ambiguous", REASONS["ambiguous"])

    def __init__(self, nearest: pl.DataFrame) -> None:
        self._nearest = nearest
        self._calls: dict[tuple[str, str], str] | None = None
        self.ambiguous: list[str] = []
        """The execution of each record that several calls may have written."""

    def call(self, execution: str, log: Log) -> str | None:
        """Return the only call in whose spans a record may have been written."""
        if not log.among:
            return None
        if self._calls is None:  # most traces have no such record
            rows = self._nearest.select(*SPAN, "call_id").iter_rows()
            self._calls = {(of, span): call for of, span, call in rows}
        calls = {self._calls.get((execution, span)) for span in log.among}
        if len(calls) > 1 or ELSEWHERE in log.among:
            self.ambiguous.append(execution)
            return None
        return calls.pop()


def _with_columns(records: pl.DataFrame, named: Collection[str]) -> pl.DataFrame:
    """Add the columns that rules name and that are read from the attributes."""
    values = {
        name: pl.coalesce(pl.col("attributes").map.get(each) for each in READ_FROM[name])
        if name in named
        else pl.lit(None, pl.String)
        for name in READ_FROM
    }
    typed = {name: value.cast(SIGNALS.schema[name], strict=False) for name, value in values.items()}
    texts = [
        orjson.dumps(each).decode() if "attributes" in named else None
        for each in records["attributes"].to_list()
    ]
    return records.with_columns(**typed).with_columns(attributes=pl.Series(texts, dtype=pl.String))
