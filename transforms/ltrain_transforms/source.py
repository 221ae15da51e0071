"""Store -> spans: which executions a recipe selects, and the spans of each.

Read are the spans that name a selected rollout, those of the same traces that name none (a server
or a tool that knows of no rollout), and those that link to one of them, with their own traces.
"""

from dataclasses import dataclass

import polars as pl

from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_transforms.membership import resolve
from ltrain_transforms.recipe import Source
from ltrain_transforms.tables import SPANS

__all__ = ["REPORTS", "Selection", "query", "read", "resolve", "watermark"]

REPORTS = (attributes.SPAN_PROCESS, attributes.SPAN_ROLLOUT)
"""Spans that say how many others their process ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which part of what a source names; None is no restriction."""

    run: str | None = None
    mode: str | None = None
    wave: int | None = None
    task: str | None = None
    rollout: str | None = None


def read(store: Store, source: Source, selection: Selection) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Give `SPANS` of the selected executions, and `DROPS`."""
    sql, params = query(source, selection)
    found = store.query(sql, params)
    return resolve(_typed(found), source.execution)


def watermark(store: Store, source: Source, selection: Selection) -> str:
    """Say when the latest of the spans that decide the selection was ingested."""
    where, params = _where(source, selection)
    sql = f"SELECT toString(max(IngestedAt)) AS latest FROM otel.spans WHERE {where}"
    return str(store.query(sql, params)["latest"][0])


def query(source: Source, selection: Selection) -> tuple[str, dict[str, object]]:
    """Give the SQL that reads the spans, and its parameters."""
    where, params = _where(source, selection)
    chosen = f"FROM otel.spans WHERE {where}"
    traces = f"(SELECT TraceId {chosen})"
    if source.execution != "rollout":
        return f"{_COLUMNS} WHERE TraceId IN {traces}", params
    run = "RunId = {run:String} AND " if "run" in params else ""
    named = f"{_COLUMNS} WHERE {run}RolloutId IN (SELECT RolloutId {chosen})"
    # the key begins with run and rollout: spans that name no rollout lie together
    runs = "RunId IN ('', {run:String}) AND " if "run" in params else ""
    nameless = f"{runs}RolloutId = ''"
    linked = (
        f"(SELECT TraceId FROM otel.spans WHERE {nameless} AND notEmpty(`Links.TraceId`) "
        f"AND hasAny(`Links.TraceId`, (SELECT groupUniqArray(TraceId) {chosen})))"
    )
    unnamed = f"{nameless} AND (TraceId IN {traces} OR TraceId IN {linked})"
    return f"{named} UNION ALL {_COLUMNS} WHERE {unnamed}", params


def _where(source: Source, selection: Selection) -> tuple[str, dict[str, object]]:
    run = selection.run or source.run
    columns = {
        "run": ("RunId = {run:String}", run),
        "mode": ("Mode = {mode:String}", selection.mode),
        "wave": ("Wave = {wave:UInt32}", selection.wave),
        "task": ("TaskId = {task:String}", selection.task),
        "rollout": ("RolloutId = {rollout:String}", selection.rollout),
        "since": ("Timestamp >= parseDateTime64BestEffort({since:String}, 9)", source.since),
        "until": ("Timestamp <= parseDateTime64BestEffort({until:String}, 9)", source.until),
    }
    if source.execution != "rollout" and run is None:
        columns.pop("mode")  # traffic that has no rollout has no mode either
    given = {name: pair for name, pair in columns.items() if pair[1] is not None}
    conditions = [condition for condition, _ in given.values()]
    if source.execution == "rollout":
        conditions.append("RolloutId != ''")
    if source.where:
        conditions.append(f"({source.where})")
    return " AND ".join(conditions) or "true", {name: value for name, (_, value) in given.items()}


def _either(attribute: str) -> str:
    """Read an attribute that may stand on the span or on its resource."""
    own, resource = f"SpanAttributes['{attribute}']", f"ResourceAttributes['{attribute}']"
    return f"if({own} != '', {own}, {resource})"


_SESSIONS = (
    "session.id",
    "gen_ai.conversation.id",
    "traceloop.association.properties.session_id",
    "traceloop.association.properties.thread_id",
    "langsmith.metadata.session_id",
    "langsmith.metadata.thread_id",
    "ai.telemetry.metadata.sessionId",
)
_SESSION = ", ".join(f"SpanAttributes['{name}']" for name in _SESSIONS)

_COLUMNS = f"""SELECT
    toString(RunId) AS run_id, RolloutId AS rollout_id, toString(Attempt) AS attempt,
    {_either(attributes.TASK_ID)} AS task_id, {_either(attributes.DOMAIN)} AS domain,
    {_either(attributes.MODE)} AS mode, {_either(attributes.WAVE)} AS wave,
    {_either(attributes.SAMPLE_INDEX)} AS sample_index,
    arrayFirst(one -> one != '', [{_SESSION}]) AS session_id,
    TraceId AS trace_id, SpanId AS span_id, ParentSpanId AS parent_id,
    ResourceAttributes['service.instance.id'] AS process, ScopeName AS scope,
    toString(SpanName) AS name,
    toUnixTimestamp64Nano(Timestamp) AS start, start + toInt64(Duration) AS end,
    toString(StatusCode) AS status, StatusMessage AS message,
    SpanAttributes['{attributes.OUTCOME}'] AS outcome,
    SpanAttributes['{attributes.SPANS}'] AS reported,
    toJSONString(SpanAttributes) AS attributes,
    toJSONString(arrayZip(`Events.Name`, `Events.Attributes`)) AS events,
    `Links.SpanId` AS links
FROM otel.spans"""


def _typed(found: pl.DataFrame) -> pl.DataFrame:
    """Give ClickHouse's columns the types of `SPANS`; an empty string says nothing."""
    filled = found.with_columns(pl.col(pl.String).replace("", None)).with_columns(
        pl.col("wave", "sample_index", "reported").cast(pl.Int64, strict=False),
        execution_id=pl.lit(None, pl.String),
        scope=pl.col("scope").fill_null(""),
        name=pl.col("name").fill_null(""),
    )
    return SPANS.select(filled.lazy()).collect()
