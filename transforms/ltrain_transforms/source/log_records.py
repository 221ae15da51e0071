"""Attach the log records of the store to the spans that contain them: messages, evaluations.

Only OpenTelemetry's gen_ai events are read, and with `source.logs` the records of a severity and
above, of the executions of the given spans. A record whose span is missing is attached to the first
span of its execution, with `in_span` false.
"""

from collections.abc import Sequence

import orjson
import polars as pl

from ltrain_collector.errors import QueryFailed
from ltrain_collector.store import Store
from ltrain_transforms.calls import resolve_logs
from ltrain_transforms.tables import DROPS, LOGS
from ltrain_transforms.traces import TRUSTED, with_roles

SEVERITIES = {"debug": 5, "info": 9, "warn": 13, "error": 17}
"""The least severity number of each level, of OpenTelemetry's logs data model."""
NO_SEVERITY = 255
"""Above the severity of any record."""

_NAME = "if(EventName != '', EventName, LogAttributes['event.name'])"
_SELECT = f"""SELECT
    RolloutId AS rollout_id, toString(Attempt) AS attempt, TraceId AS trace_id, SpanId AS span_id,
    toUnixTimestamp64Nano(Timestamp) AS time, ScopeName AS scope,
    toString(Sender) AS sender, {_NAME} AS name, Body AS body,
    toJSONString(LogAttributes) AS attributes, toInt32(SeverityNumber) AS severity
FROM otel.logs
WHERE (startsWith({_NAME}, 'gen_ai.') OR SeverityNumber >= {{severity:UInt8}})
    AND (RolloutId IN {{rollouts:Array(String)}}
        OR RolloutId = '' AND TraceId IN {{traces:Array(String)}})
ORDER BY time, trace_id, span_id, name, body, attributes"""


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
    least = SEVERITIES.get(severity or "", NO_SEVERITY)
    if spans.is_empty() or (records := _query_records(store, spans, least)).is_empty():
        return spans, DROPS.empty()
    resolved, unresolved = resolve_logs(_typed(records, trust), spans)
    return spans.drop("logs").join(
        _log_cells(resolved, spans),
        ["execution_id", "trace_id", "span_id"],
        "left",
        maintain_order="left",
    ).select(spans.columns), unresolved


def _query_records(store: Store, spans: pl.DataFrame, severity: int) -> pl.DataFrame:
    params = {
        "severity": severity,
        "rollouts": spans["rollout_id"].drop_nulls().unique().to_list(),
        "traces": spans["trace_id"].unique().to_list(),
    }
    try:
        return store.query(_SELECT, params)
    except QueryFailed as error:
        if error.table_missing:  # the store holds only traces
            return pl.DataFrame()
        raise


def _typed(records: pl.DataFrame, trust: Sequence[str]) -> pl.DataFrame:
    filled = records.with_columns(pl.col(pl.String).replace("", None)).with_columns(
        execution_id=pl.lit(None, pl.String)
    )
    return LOGS.select(with_roles(filled, trust).lazy()).collect()


def _log_cells(records: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the cell `logs` of each span that has one."""
    key = ["execution_id", "trace_id", "span_id"]
    known = spans.select(key).unique().with_columns(in_span=pl.lit(True))
    first = spans.group_by("execution_id", maintain_order=True).first()
    placed = records.join(known, key, "left", maintain_order="left").join(
        first.select("execution_id", first_trace="trace_id", first_span="span_id"),
        "execution_id",
        maintain_order="left",
    )
    cells: dict[tuple[str, str, str], list[object]] = {}
    for row in placed.iter_rows(named=True):
        in_span = row["in_span"] is not None
        span = (row["trace_id"], row["span_id"])
        if not in_span:
            span = (row["first_trace"], row["first_span"])
        fields = [row[name] for name in ("name", "body", "attributes", "time", "role")]
        fields += [in_span, row["severity"]]
        cells.setdefault((row["execution_id"], *span), []).append(fields)
    rows = [(*ids, orjson.dumps(logs).decode()) for ids, logs in cells.items()]
    schema = {**dict.fromkeys(key, pl.String()), "logs": pl.String()}
    return pl.DataFrame(rows, schema, orient="row")
