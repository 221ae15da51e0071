"""Log records of the store, on the spans they were written in: messages and evaluations.

Read are those of OpenTelemetry's gen_ai events, of the executions whose spans are given. A record
that names no span that is there is on the first one of its execution, and says so.
"""

from collections.abc import Sequence

import orjson
import polars as pl

from ltrain_collector.errors import QueryFailed
from ltrain_collector.store import Store
from ltrain_transforms.membership import resolve_logs
from ltrain_transforms.roles import TRUSTED, with_roles
from ltrain_transforms.tables import DROPS, LOGS

_NAME = "if(EventName != '', EventName, LogAttributes['event.name'])"
_SELECT = f"""SELECT
    RolloutId AS rollout_id, toString(Attempt) AS attempt, TraceId AS trace_id, SpanId AS span_id,
    toUnixTimestamp64Nano(Timestamp) AS time, ScopeName AS scope,
    toString(Sender) AS sender, {_NAME} AS name, Body AS body,
    toJSONString(LogAttributes) AS attributes
FROM otel.logs
WHERE startsWith({_NAME}, 'gen_ai.')
    AND (RolloutId IN {{rollouts:Array(String)}}
        OR RolloutId = '' AND TraceId IN {{traces:Array(String)}})
ORDER BY time, trace_id, span_id, name, body, attributes"""


def attached(
    store: Store, spans: pl.DataFrame, trust: Sequence[str] = TRUSTED
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Fill `logs` of resolved `SPANS`; return them, and the records that belong to none, `DROPS`.

    Args:
        trust: the senders whose records may be a runner's.
    """
    if spans.is_empty() or (found := _found(store, spans)).is_empty():
        return spans, DROPS.empty()
    known, lost = resolve_logs(_typed(found, trust), spans)
    return spans.drop("logs").join(
        _written(known, spans),
        ["execution_id", "trace_id", "span_id"],
        "left",
        maintain_order="left",
    ).select(spans.columns), lost


def _found(store: Store, spans: pl.DataFrame) -> pl.DataFrame:
    asked = {
        "rollouts": spans["rollout_id"].drop_nulls().unique().to_list(),
        "traces": spans["trace_id"].unique().to_list(),
    }
    try:
        return store.query(_SELECT, asked)
    except QueryFailed as error:
        if error.table_missing:  # a store of traces alone
            return pl.DataFrame()
        raise


def _typed(found: pl.DataFrame, trust: Sequence[str]) -> pl.DataFrame:
    filled = found.with_columns(pl.col(pl.String).replace("", None)).with_columns(
        execution_id=pl.lit(None, pl.String)
    )
    return LOGS.select(with_roles(filled, trust).lazy()).collect()


def _written(records: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Give the cell `logs` of each span that has one."""
    place = ["execution_id", "trace_id", "span_id"]
    there = spans.select(place).unique().with_columns(inside=pl.lit(True))
    first = spans.group_by("execution_id", maintain_order=True).first()
    placed = records.join(there, place, "left", maintain_order="left").join(
        first.select("execution_id", first_trace="trace_id", first_span="span_id"),
        "execution_id",
        maintain_order="left",
    )
    cells: dict[tuple[str, str, str], list[object]] = {}
    for row in placed.iter_rows(named=True):
        inside = row["inside"] is not None
        at = [row[name] for name in ("trace_id", "span_id")]
        if not inside:
            at = [row["first_trace"], row["first_span"]]
        said = [row[name] for name in ("name", "body", "attributes", "time", "role")]
        cells.setdefault((row["execution_id"], *at), []).append([*said, inside])
    rows = [(*key, orjson.dumps(said).decode()) for key, said in cells.items()]
    schema = {**dict.fromkeys(place, pl.String()), "logs": pl.String()}
    return pl.DataFrame(rows, schema, orient="row")
