"""Store -> spans: which executions a recipe selects, and the spans of each.

Read are the spans that name a selected rollout, those of the same traces that name none (a server
or a tool that knows of no rollout), and those that link to one of them, with their own traces.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_transforms import roles
from ltrain_transforms.membership import resolve_spans
from ltrain_transforms.recipe import Source
from ltrain_transforms.records import attached
from ltrain_transforms.tables import SPANS

__all__ = ["REPORTS", "Selection", "query", "read", "resolve_spans", "watermark"]

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
    without: tuple[str, ...] = ()
    """Waves whose rollouts are left out, each `<run>/<mode>/<wave>`."""


def placing(trust: Sequence[str]) -> str:
    """Return the SQL of the spans by which a runner says what its rollouts are."""
    runner = roles.of(roles.Role.RUNNER, trust)
    names = f"'{attributes.SPAN_DISPATCH}', '{attributes.SPAN_ROLLOUT}'"
    return f"({runner} AND SpanName IN ({names}) AND Mode != '')"


PLACE = "concat(toString(RunId), '/', toString(Mode), '/', toString(Wave))"
"""SQL of the wave that a span names."""


ALONE = "SETTINGS max_threads = 1, preferred_block_size_bytes = 33554432"
"""A batch is read while others are worked on: several threads and small blocks (1 MiB) take
1.7 times the CPU for it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Executions that are read together: those from `first` to `last`, in the store's order."""

    first: str
    last: str
    also: tuple[str, ...] = ()
    """Others that share a trace with one of them."""
    without: tuple[str, ...] = ()
    """Those between that belong with others."""

    def condition(self, column: str) -> tuple[str, dict[str, object]]:
        """Say it in SQL, with its parameters."""
        sql = f"{column} BETWEEN {{first:String}} AND {{last:String}}"
        params: dict[str, object] = {"first": self.first, "last": self.last}
        if self.without:
            sql += f" AND {column} NOT IN {{without:Array(String)}}"
            params["without"] = list(self.without)
        if self.also:
            sql = f"({sql} OR {column} IN {{also:Array(String)}})"
            params["also"] = list(self.also)
        return sql, params


def read(
    store: Store, source: Source, selection: Selection, batch: Batch | None = None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return `SPANS` of the selected executions, or of one batch of them, and `DROPS`."""
    sql, params = query(source, selection, batch)
    found = store.query(f"{sql} {ALONE}", params)
    trust = roles.senders(source.trust)
    spans, unresolved = resolve_spans(_typed(found, trust), source.execution)
    spans, astray = attached(store, spans, trust)
    return spans, pl.concat([unresolved, astray])


def watermark(store: Store, source: Source, selection: Selection) -> tuple[str, int | None]:
    """Say of the spans that decide the selection when the latest was ingested, and when the newest
    ended, in nanoseconds; None where there is none.
    """
    where, params = chosen(source, selection)
    sql = (
        "SELECT toString(max(IngestedAt)) AS latest, toInt64(count()) AS spans, "
        "max(toUnixTimestamp64Nano(Timestamp) + toInt64(Duration)) AS newest "
        f"FROM otel.spans WHERE {where}"
    )
    [(latest, spans, newest)] = store.query(sql, params).iter_rows()
    return str(latest), int(newest) if spans else None


def unit(source: Source) -> str:
    """Name the column by which executions are cut into batches."""
    return "RolloutId" if source.execution == "rollout" else "TraceId"


def query(
    source: Source, selection: Selection, batch: Batch | None = None
) -> tuple[str, dict[str, object]]:
    """Give the SQL that reads the spans, and its parameters."""
    where, params = chosen(source, selection)
    within = "true"
    if batch is not None:
        within, limits = batch.condition(unit(source))
        where, params = f"{where} AND {within}", params | limits
    seen = f"FROM otel.spans WHERE {where}"
    # seven look-ups in each span's map: a sixth of the cost of reading rollouts
    columns = _SELECT.format(session="''" if source.execution == "rollout" else SESSION)
    traces = f"(SELECT TraceId {seen})"
    if source.execution != "rollout":
        return f"{columns} WHERE {within} AND TraceId IN {traces}", params
    run = "RunId = {run:String} AND " if "run" in params else ""
    named = f"{columns} WHERE {run}{within} AND RolloutId IN (SELECT RolloutId {seen})"
    # the key begins with run and rollout: spans that name no rollout lie together
    runs = "RunId IN ('', {run:String}) AND " if "run" in params else ""
    nameless = f"{runs}RolloutId = ''"
    linked = (
        f"(SELECT TraceId FROM otel.spans WHERE {nameless} AND notEmpty(`Links.TraceId`) "
        f"AND hasAny(`Links.TraceId`, (SELECT groupUniqArray(TraceId) {seen})))"
    )
    unnamed = f"{nameless} AND (TraceId IN {traces} OR TraceId IN {linked})"
    return f"{named} UNION ALL {columns} WHERE {unnamed}", params


def chosen(source: Source, selection: Selection) -> tuple[str, dict[str, object]]:
    """Give the condition on the spans that select an execution, and its parameters."""
    named, params = conditions(source, selection)
    return " AND ".join(named.values()) or "true", params


def conditions(source: Source, selection: Selection) -> tuple[dict[str, str], dict[str, object]]:
    """Return each condition by the name of what asks for it, and their parameters."""
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
    named = {name: condition for name, (condition, _) in given.items()}
    params: dict[str, object] = {name: value for name, (_, value) in given.items()}
    if source.execution == "rollout":
        named["with a rollout's id"] = "RolloutId != ''"
    if source.where:
        named["where"] = f"({source.where})"
    # any span may name mode, wave and task; where a runner names them, no agent moves the rollout
    within = "RunId = {run:String} AND " if run is not None else ""
    ours = f"FROM otel.spans WHERE {within}{placing(roles.senders(source.trust))}"
    if asked := [named[name] for name in ("mode", "wave", "task") if name in named]:
        elsewhere = f"SELECT RolloutId {ours} AND NOT ({' AND '.join(asked)})"
        named["where its runner has it"] = f"RolloutId NOT IN ({elsewhere})"
    if selection.without:
        known = f"{PLACE} IN {{known_waves:Array(String)}}"
        anyone = f"RolloutId != '' AND RolloutId NOT IN (SELECT RolloutId {ours})"
        named["new"] = (
            f"RolloutId NOT IN (SELECT RolloutId {ours} AND {known}) AND RolloutId NOT IN "
            f"(SELECT RolloutId FROM otel.spans WHERE {within}{known} AND {anyone})"
        )
        params["known_waves"] = list(selection.without)
    return named, params


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
SESSION = (
    "arrayFirst(one -> one != '', ["
    + ", ".join(f"SpanAttributes['{name}']" for name in _SESSIONS)
    + "])"
)
"""SQL of the conversation that a span names, or of an empty string."""
LINKED = "arrayElement(`Links.TraceId`, 1)"
"""SQL of the trace that a span links to first."""

_SELECT = f"""SELECT
    toString(RunId) AS run_id, RolloutId AS rollout_id, toString(Attempt) AS attempt,
    {_either(attributes.TASK_ID)} AS task_id, {_either(attributes.DOMAIN)} AS domain,
    {_either(attributes.MODE)} AS mode, {_either(attributes.WAVE)} AS wave,
    {_either(attributes.SAMPLE_INDEX)} AS sample_index,
    {{session}} AS session_id,
    TraceId AS trace_id, SpanId AS span_id, ParentSpanId AS parent_id,
    ResourceAttributes['service.instance.id'] AS process, ScopeName AS scope,
    toString(Sender) AS sender, toString(SpanName) AS name,
    toUnixTimestamp64Nano(Timestamp) AS start, start + toInt64(Duration) AS end,
    toString(StatusCode) AS status, StatusMessage AS message,
    SpanAttributes['{attributes.OUTCOME}'] AS outcome,
    SpanAttributes['{attributes.SPANS}'] AS reported,
    SpanAttributes AS attributes,
    toJSONString(arrayZip(`Events.Name`, `Events.Attributes`)) AS events,
    `Links.SpanId` AS links
FROM otel.spans"""


COUNTS = ("wave", "sample_index", "reported")
"""Columns that are numbers in the attributes; null where the text is none that fits."""


def _typed(found: pl.DataFrame, trust: Sequence[str]) -> pl.DataFrame:
    """Cast ClickHouse's columns to the types of `SPANS`; an empty string is null."""
    filled = found.with_columns(pl.col(pl.String).replace("", None)).with_columns(
        *(pl.col(name).cast(SPANS.schema[name], strict=False) for name in COUNTS),
        execution_id=pl.lit(None, pl.String),
        logs=pl.lit(None, pl.String),
        scope=pl.col("scope").fill_null(""),
        name=pl.col("name").fill_null(""),
    )
    return SPANS.select(roles.with_roles(filled, trust).lazy()).collect()
