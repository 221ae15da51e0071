"""Stream stored spans, one complete rollout after another, month by month.

Each month is a partition. Reading one partition at a time avoids merging its parts with those of
other months, which would be half the work. Rollouts with spans in two or more months come last,
merged. Each span is returned once; spans that are written during the read can be missing, or come
apart from their rollout.
"""

from collections.abc import Iterator

import polars as pl

from ltrain_collector.schema import MONTH_ORDER, ROLLOUT_ORDER
from ltrain_collector.store.formats import Parameters
from ltrain_collector.store.trace_store import Store

MAX_WIDE_ROLLOUTS = 1000
"""Rollouts with spans in several months that a query can name; beyond it, all months are merged."""

MONTH = "toYYYYMM(Timestamp, 'UTC')"

PARTITIONS = f"""
SELECT arraySort(groupUniqArrayArray(reached)) AS months,
    groupArrayIf({MAX_WIDE_ROLLOUTS + 1})((toString(RunId), RolloutId), wide) AS apart
FROM (
    SELECT RunId, RolloutId, groupUniqArray({MONTH}) AS reached,
        RolloutId != '' AND length(reached) > 1 AS wide
    FROM otel.spans WHERE {{where}} GROUP BY RunId, RolloutId
)
SETTINGS max_threads = 1, optimize_aggregation_in_order = 1
"""

IN_WIDE_ROLLOUTS = "(RunId, RolloutId) IN {apart:Array(Tuple(String, String))}"


def stream_rollouts(
    store: Store, columns: str = "*", where: str = "1", params: Parameters | None = None
) -> Iterator[pl.DataFrame]:
    """Yield `columns` of the spans that `where` selects, in non-empty frames.

    The spans of a rollout are ordered by attempt, trace and time. Spans without a rollout come with
    their month.
    """
    select = f"SELECT {columns} FROM otel.spans WHERE ({where})"
    partitions = store.query(PARTITIONS.format(where=where), params).row(0, named=True)
    months, wide = partitions["months"], [tuple(each.values()) for each in partitions["apart"]]
    if len(months) < 2:
        yield from store.stream(f"{select} {MONTH_ORDER}", params)
        return
    if len(wide) > MAX_WIDE_ROLLOUTS:
        yield from store.stream(f"{select} {ROLLOUT_ORDER}", params)
        return
    all_params = {**(params or {}), "apart": wide}
    within = f" AND NOT {IN_WIDE_ROLLOUTS}" if wide else ""
    for month in months:
        sql = f"{select} AND {MONTH} = {month}{within} {MONTH_ORDER}"
        yield from store.stream(sql, all_params)
    if wide:
        yield from store.stream(f"{select} AND {IN_WIDE_ROLLOUTS} {ROLLOUT_ORDER}", all_params)
