"""Store -> spans: the executions that a recipe selects, and their spans.

For a selected rollout these are: the spans that carry its id; the spans of the same traces that
carry none (a server or a tool does not know the rollout); and the spans that link to one of these
traces, with their own traces.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import polars as pl

from ltrain_collector import promoted_columns
from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_instrument.identity import HELD_OUT_MODES
from ltrain_transforms.calls import resolve_spans
from ltrain_transforms.recipe import Metrics, Source
from ltrain_transforms.source.call_keys import CALL_KEYS_SQL, PROCESS_SQL
from ltrain_transforms.source.declared_dialects import read_declared
from ltrain_transforms.source.exemplars import attach_exemplars
from ltrain_transforms.source.log_records import attach_logs
from ltrain_transforms.tables import SPANS
from ltrain_transforms.traces import sender_roles

__all__ = ["Selection", "read_spans", "resolve_spans", "spans_query", "watermark"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A part of a source's executions; None means no restriction."""

    run: str | None = None
    mode: str | None = None
    wave: int | None = None
    groups: tuple[str, ...] | None = None
    """Tasks of waves, each as `<wave>/<task>`: the rollouts of a task in a wave are a group."""
    task: str | None = None
    rollouts: tuple[str, ...] | None = None
    """Their ids."""
    since: str | None = None
    """Earliest start of a span, ISO 8601, instead of the source's."""
    without: tuple[str, ...] = ()
    """Waves whose rollouts are left out, each as `<run>/<mode>/<wave>`."""

    @classmethod
    def of_source(
        cls,
        source: Source,
        *,
        run: str | None = None,
        wave: int | None = None,
        groups: tuple[str, ...] | None = None,
        since: str | None = None,
    ) -> Self:
        """Select the executions of a source's mode, and of what else is named."""
        mode = None if source.mode == "all" else source.mode
        return cls(run=run, mode=mode, wave=wave, groups=groups, since=since)


def runner_condition(trust: Sequence[str]) -> str:
    """Return an SQL condition: the span is a runner's, and names mode and wave of its rollout."""
    runner = sender_roles.role_condition(sender_roles.Role.RUNNER, trust)
    names = f"'{attributes.SPAN_DISPATCH}', '{attributes.SPAN_ROLLOUT}'"
    return f"({runner} AND SpanName IN ({names}) AND Mode != '')"


WAVE_SQL = "concat(toString(RunId), '/', toString(Mode), '/', toString(Wave))"
"""SQL expression: the wave that a span names, `<run>/<mode>/<wave>`."""


GROUP_SQL = "concat(toString(Wave), '/', toString(TaskId))"
"""SQL expression: the group that a span names, `<wave>/<task>`."""


QUERY_SETTINGS = "SETTINGS max_threads = 1, preferred_block_size_bytes = 33554432"
"""A batch is read while others are processed: several threads and small blocks (1 MiB) would take
1.7 times the CPU."""


@dataclass(frozen=True, slots=True)
class ExecutionBatch:
    """Executions that are read together: the range from `first` to `last`, by `batch_column`."""

    first: str
    last: str
    also: tuple[str, ...] = ()
    """Ids outside the range that share a trace with one inside."""
    without: tuple[str, ...] = ()
    """Ids inside the range that belong to another batch."""

    def condition(self, column: str) -> tuple[str, dict[str, object]]:
        """Return the SQL condition on `column`, and its parameters."""
        sql = f"{column} BETWEEN {{first:String}} AND {{last:String}}"
        params: dict[str, object] = {"first": self.first, "last": self.last}
        if self.without:
            sql += f" AND {column} NOT IN {{without:Array(String)}}"
            params["without"] = list(self.without)
        if self.also:
            sql = f"({sql} OR {column} IN {{also:Array(String)}})"
            params["also"] = list(self.also)
        return sql, params


def read_spans(
    store: Store,
    source: Source,
    selection: Selection,
    batch: ExecutionBatch | None = None,
    metrics: Metrics = (),
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return `SPANS` of the selected executions, or of one batch of them, and `DROPS`.

    Args:
        metrics: `recipe.metrics`, the metrics whose exemplars are read.
    """
    sql, params = spans_query(source, selection, batch)
    rows = store.query(f"{sql} {QUERY_SETTINGS}", params)
    trust = sender_roles.trusted_senders(source.trust)
    is_call = pl.col("call_keys").list.len() > 0
    keys = rows.filter(is_call).select("trace_id", "span_id", "call_keys")
    spans, unresolved = resolve_spans(_typed(rows, source, trust), source.execution, keys)
    spans, unresolved_logs = attach_logs(store, spans, trust, source.logs)
    spans, unresolved_exemplars = attach_exemplars(store, spans, metrics, trust)
    return spans, pl.concat([unresolved, unresolved_logs, unresolved_exemplars])


def read_first_spans(
    store: Store, source: Source, own: str, params: dict[str, object], count: int
) -> pl.DataFrame:
    """Return about the first `count` `SPANS` of one execution, without its log records.

    Args:
        own: the SQL condition on the spans that name it.
        params: the parameters of `own`.
    """
    first = f"SELECT Timestamp FROM otel.spans WHERE {own} ORDER BY Timestamp LIMIT {count}"
    sql = (
        f"{_columns(source)} WHERE {own} AND Timestamp <= (SELECT max(Timestamp) FROM ({first})) "
        f"ORDER BY Timestamp LIMIT {count}"
    )
    rows = store.query(f"{sql} {QUERY_SETTINGS}", params)
    trust = sender_roles.trusted_senders(source.trust)
    return resolve_spans(_typed(rows, source, trust), source.execution)[0]


def read_spans_state(store: Store, source: Source, selection: Selection) -> tuple[int, str]:
    """Return how many spans `read_spans` reads, and when the latest of them was ingested."""
    columns = "SELECT IngestedAt AS ingested FROM otel.spans"
    sql, params = spans_query(source, selection, columns=columns)
    state = "SELECT toInt64(count()) AS spans, toString(max(ingested)) AS latest"
    [(spans, latest)] = store.query(f"{state} FROM ({sql})", params).iter_rows()
    return int(spans), str(latest)


def list_rollouts(store: Store, source: Source, selection: Selection) -> tuple[str, ...]:
    """Return the ids of the selected rollouts.

    Several queries of a few rollouts take less time by their ids: spans are stored in their order.
    """
    where, params = selection_condition(source, selection)
    sql = f"SELECT DISTINCT RolloutId AS rollout FROM otel.spans WHERE {where} ORDER BY rollout"
    return tuple(store.query(sql, params)["rollout"])


def watermark(store: Store, source: Source, selection: Selection) -> tuple[str, int | None]:
    """Return when the latest selected span was ingested, and when the newest of them ended.

    Only the spans that decide the selection count. The end is in nanoseconds; None without a span.
    """
    where, params = selection_condition(source, selection)
    sql = (
        "SELECT toString(max(IngestedAt)) AS latest, toInt64(count()) AS spans, "
        "max(toUnixTimestamp64Nano(Timestamp) + toInt64(Duration)) AS newest "
        f"FROM otel.spans WHERE {where}"
    )
    [(latest, spans, newest)] = store.query(sql, params).iter_rows()
    return str(latest), int(newest) if spans else None


def count_ended(store: Store, source: Source, selection: Selection, after: int, until: int) -> int:
    """Return how many selected executions had their last span in a time, in ns since the epoch.

    Of a session each trace counts.
    """
    where, params = selection_condition(source, selection)
    ends = "max(toUnixTimestamp64Nano(Timestamp) + toInt64(Duration)) AS ended"
    sql = (
        f"SELECT count() AS executions FROM (SELECT {batch_column(source)} AS unit, {ends} "
        f"FROM otel.spans WHERE {where} GROUP BY unit "
        "HAVING ended > {after:Int64} AND ended <= {until:Int64})"
    )
    limits = {"after": after, "until": until}
    return int(store.query(sql, params | limits)["executions"][0])


def batch_column(source: Source) -> str:
    """Return the column by which executions are divided into batches."""
    return "RolloutId" if source.execution == "rollout" else "TraceId"


def spans_query(
    source: Source,
    selection: Selection,
    batch: ExecutionBatch | None = None,
    columns: str | None = None,
) -> tuple[str, dict[str, object]]:
    """Return the SQL that reads the spans, and its parameters.

    Args:
        columns: what is read of each, `SELECT … FROM otel.spans`; None: the columns of `SPANS`.
    """
    where, params = selection_condition(source, selection, batch)
    within = "true" if batch is None else batch.condition(batch_column(source))[0]
    selected = f"FROM otel.spans WHERE {where}"
    columns = columns or _columns(source)
    traces = f"(SELECT TraceId {selected})"
    if source.execution != "rollout":
        return f"{columns} WHERE {within} AND TraceId IN {traces}", params
    # feedback names its rollout and no run; spans without a run are stored together
    runs = "RunId IN ('', {run:String}) AND " if "run" in params else ""
    named = f"{columns} WHERE {runs}{within} AND RolloutId IN (SELECT RolloutId {selected})"
    nameless = f"{runs}RolloutId = ''"
    linked = (
        f"(SELECT TraceId FROM otel.spans WHERE {nameless} AND notEmpty(`Links.TraceId`) "
        f"AND hasAny(`Links.TraceId`, (SELECT groupUniqArray(TraceId) {selected})))"
    )
    unnamed = f"{nameless} AND (TraceId IN {traces} OR TraceId IN {linked})"
    return f"{named} UNION ALL {columns} WHERE {unnamed}", params


def _columns(source: Source) -> str:
    """Return the SQL that reads the columns of `SPANS`, before its condition."""
    keys = "emptyArrayString()" if source.execution == "rollout" else CALL_KEYS_SQL
    return _SELECT.format(keys=keys)


def selection_condition(
    source: Source, selection: Selection, batch: ExecutionBatch | None = None
) -> tuple[str, dict[str, object]]:
    """Return the condition on the spans that select an execution, and its parameters."""
    named, params = selection_conditions(source, selection, batch)
    return " AND ".join(named.values()) or "true", params


def selection_conditions(
    source: Source, selection: Selection, batch: ExecutionBatch | None = None
) -> tuple[dict[str, str], dict[str, object]]:
    """Return each condition by the name of its option, and the parameters of all.

    Args:
        batch: part of the executions; the runner's spans of other rollouts are not searched.
    """
    run, since = selection.run or source.run, selection.since or source.since
    columns = {
        "run": ("RunId = {run:String}", run),
        "mode": ("Mode = {mode:String}", selection.mode),
        "wave": ("Wave = {wave:UInt32}", selection.wave),
        "groups": (f"{GROUP_SQL} IN {{groups:Array(String)}}", selection.groups),
        "task": ("TaskId = {task:String}", selection.task),
        "rollouts": ("RolloutId IN {rollouts:Array(String)}", selection.rollouts),
        "since": ("Timestamp >= parseDateTime64BestEffort({since:String}, 9)", since),
        "until": ("Timestamp <= parseDateTime64BestEffort({until:String}, 9)", source.until),
    }
    if source.execution != "rollout" and run is None:
        columns["mode"] = (TRAFFIC_MODES.get(selection.mode or "", "true"), selection.mode)
    pairs = {name: pair for name, pair in columns.items() if pair[1] is not None}
    named = {name: condition for name, (condition, _) in pairs.items()}
    params: dict[str, object] = {
        name: list(value) if isinstance(value, tuple) else value
        for name, (_, value) in pairs.items()
    }
    if source.execution == "rollout":
        named["with a rollout id"] = "RolloutId != ''"
    else:
        named["not of the learner"] = f"ScopeName != '{attributes.SCOPE_LEARNER}'"
    if source.where:
        named["where"] = f"({source.where})"
    # any span may name mode, wave and task; where a runner names them, only the runner counts
    within = "RunId = {run:String} AND " if run is not None else ""
    if batch is not None:
        named["batch"], limits = batch.condition(batch_column(source))
        params |= limits
        if source.execution == "rollout":
            within = f"{named['batch']} AND {within}"
    runner = runner_condition(sender_roles.trusted_senders(source.trust))
    by_runner = f"FROM otel.spans WHERE {within}{runner}"
    if places := [named[name] for name in PLACES if name in named]:
        elsewhere = f"SELECT RolloutId {by_runner} AND NOT ({' AND '.join(places)})"
        named["as its runner recorded"] = f"RolloutId NOT IN ({elsewhere})"
    if selection.without:
        known = f"{WAVE_SQL} IN {{known_waves:Array(String)}}"
        anyone = f"RolloutId != '' AND RolloutId NOT IN (SELECT RolloutId {by_runner})"
        named["new"] = (
            f"RolloutId NOT IN (SELECT RolloutId {by_runner} AND {known}) AND RolloutId NOT IN "
            f"(SELECT RolloutId FROM otel.spans WHERE {within}{known} AND {anyone})"
        )
        params["known_waves"] = list(selection.without)
    return named, params


def _promoted(columns: Iterable[promoted_columns.PromotedColumn]) -> Iterator[str]:
    """Yield the SQL of the promoted columns that `SPANS` has.

    A number is read as text from the attributes, since its column holds 0 where none is named.
    """
    for column in columns:
        if column.snake_name in SPANS.schema:
            is_number = column.type == promoted_columns.NUMBER
            value = column.text() if is_number else f"toString({column.name})"
            yield f"{value} AS {column.snake_name}"


LINKED_TRACE_SQL = "arrayElement(`Links.TraceId`, 1)"
"""SQL expression: the trace of a span's first link."""

_SELECT = f"""SELECT
    {", ".join(_promoted(promoted_columns.PROMOTED))},
    {{keys}} AS call_keys,
    TraceId AS trace_id, SpanId AS span_id, ParentSpanId AS parent_id,
    {PROCESS_SQL} AS process, ScopeName AS scope, ScopeVersion AS scope_version,
    toString(SpanName) AS name,
    toUnixTimestamp64Nano(Timestamp) AS start, start + toInt64(Duration) AS end,
    toString(StatusCode) AS status, StatusMessage AS message,
    SpanAttributes['{attributes.SPANS}'] AS reported,
    SpanAttributes AS attributes,
    toJSONString(arrayZip(`Events.Name`, `Events.Attributes`)) AS events,
    `Links.SpanId` AS links
FROM otel.spans"""


PLACES = ("mode", "wave", "groups", "task")
"""The conditions on the place of a rollout in its run."""

TRAFFIC_MODES: dict[str, str] = {
    "train": f"Mode NOT IN {HELD_OUT_MODES}",
    **{mode: f"Mode = '{mode}'" for mode in HELD_OUT_MODES},
    "prod": "Mode IN ('', 'prod')",
}
"""SQL condition by selected mode, where no run is named: traffic without a rollout has no mode, and
is all that there is to train on."""

NUMERIC_COLUMNS = (
    *(
        each.snake_name
        for each in promoted_columns.PROMOTED
        if each.in_transforms and each.type == promoted_columns.NUMBER
    ),
    "reported",
)
"""Columns that are numbers in the attributes; null where the text is not a number that fits."""


def _typed(rows: pl.DataFrame, source: Source, trust: Sequence[str]) -> pl.DataFrame:
    """Cast ClickHouse's columns to the types of `SPANS`; an empty string becomes null.

    The spans that `source.dialect` describes have its attributes.
    """
    filled = rows.with_columns(pl.col(pl.String).replace("", None)).with_columns(
        *(pl.col(name).cast(SPANS.schema[name], strict=False) for name in NUMERIC_COLUMNS),
        execution_id=pl.lit(None, pl.String),
        logs=pl.lit(None, pl.String),
        exemplars=pl.lit(None, pl.String),
        scope=pl.col("scope").fill_null(""),
        name=pl.col("name").fill_null(""),
    )
    spans = SPANS.select(sender_roles.with_roles(filled, trust).lazy()).collect()
    return read_declared(spans, source.dialect)
