"""Attach the exemplars of metrics to the spans that they name: the measurements of single calls.

Only those of the metrics that rules on signals read are queried. A cumulative metric may send an
exemplar several times, which counts once.
"""

from collections.abc import Sequence

import orjson
import polars as pl

from ltrain_collector.errors import QueryFailed
from ltrain_collector.signals import METRICS
from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_transforms.calls import membership
from ltrain_transforms.recipe import Metrics
from ltrain_transforms.source.trained_calls import to_drops
from ltrain_transforms.tables import DROPS
from ltrain_transforms.traces import TRUSTED, with_roles

FIELDS = ("TraceId", "SpanId", "TimeUnix", "Value", "FilteredAttributes")
VIEWS = tuple(table.view for table in METRICS.tables if "Exemplars.Value" in table.columns)
"""The views of the metrics that have exemplars."""
_SELECT = f"""SELECT DISTINCT
    `Exemplars.TraceId` AS trace_id, `Exemplars.SpanId` AS span_id, ScopeName AS scope,
    ResourceAttributes['{attributes.SENDER}'] AS sender,
    toString(MetricName) AS name, `Exemplars.Value` AS value, MetricUnit AS unit,
    toJSONString(mapUpdate(Attributes, `Exemplars.FilteredAttributes`)) AS attributes,
    toUnixTimestamp64Nano(`Exemplars.TimeUnix`) AS time
FROM {{view}} ARRAY JOIN {", ".join(f"`Exemplars.{field}`" for field in FIELDS)}
WHERE {{names}} AND TimeUnix >= fromUnixTimestamp64Nano({{{{first:Int64}}}})
    AND trace_id IN {{{{traces:Array(String)}}}}
ORDER BY time, trace_id, span_id, name, value, attributes"""
RECORD = pl.Schema(
    {
        **dict.fromkeys(("trace_id", "span_id", "scope", "sender", "name"), pl.String()),
        **{"value": pl.Float64(), "unit": pl.String(), "attributes": pl.String()},
        "time": pl.Int64(),
    }
)
KEY = ("trace_id", "span_id")
CELL = ("name", "value", "unit", "attributes", "time", "scope", "role")


def attach_exemplars(
    store: Store, spans: pl.DataFrame, metrics: Metrics, trust: Sequence[str] = TRUSTED
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Fill `exemplars` of resolved `SPANS`; return them, and those of no span as `DROPS`."""
    if metrics == () or spans.is_empty():
        return spans, DROPS.empty()
    records = pl.concat([_query(store, view, spans, metrics) for view in VIEWS])
    cells: dict[tuple[str, str], list[object]] = {}
    for trace, span, *fields in with_roles(records, trust).select(*KEY, *CELL).iter_rows():
        cells.setdefault((trace, span), []).append(fields)
    rows = [(*key, orjson.dumps(fields).decode()) for key, fields in cells.items()]
    found = pl.DataFrame(rows, dict.fromkeys((*KEY, "exemplars"), pl.String), orient="row")
    joined = spans.drop("exemplars").join(found, KEY, "left", maintain_order="left")
    unknown = records.join(spans, KEY, "anti").with_columns(reason=pl.lit("unresolved"))
    return joined.select(spans.columns), to_drops("spans", unknown, "span_id", membership.REASONS)


def _query(store: Store, view: str, spans: pl.DataFrame, metrics: Metrics) -> pl.DataFrame:
    params: dict[str, object] = {
        "names": list(metrics or ()),
        "traces": spans["trace_id"].unique().to_list(),
        "first": spans["start"].min(),
    }
    names = "true" if metrics is None else "MetricName IN {names:Array(String)}"
    try:
        found = store.query(_SELECT.format(view=view, names=names), params)
    except QueryFailed as error:
        if error.table_missing:  # a table of an exporter, which has those that it needed
            return RECORD.to_frame()
        raise
    return found.select(pl.col(name).cast(dtype) for name, dtype in RECORD.items())
