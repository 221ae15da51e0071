"""Stored spans, whole rollouts one after another, month by month.

A month is one partition: read alone, its parts need no merge with those of other months, which
would be half the work. The rollouts that reach into a second month come last, merged. Each span is
given once; what is written meanwhile may be given or not, and apart from its rollout.
"""

from collections.abc import Iterator

import polars as pl

from ltrain_collector.parameters import Parameters
from ltrain_collector.schema import MONTH_ORDER, ROLLOUT_ORDER
from ltrain_collector.store import Store

MANY = 1000
"""Rollouts of several months that a query may name; with more of them, all is merged."""

MONTH = "toYYYYMM(Timestamp, 'UTC')"

PLACES = f"""
SELECT arraySort(groupUniqArrayArray(reached)) AS months,
    groupArrayIf({MANY + 1})((toString(RunId), RolloutId), wide) AS apart
FROM (
    SELECT RunId, RolloutId, groupUniqArray({MONTH}) AS reached,
        RolloutId != '' AND length(reached) > 1 AS wide
    FROM otel.spans WHERE {{where}} GROUP BY RunId, RolloutId
)
SETTINGS max_threads = 1, optimize_aggregation_in_order = 1
"""

APART = "(RunId, RolloutId) IN {apart:Array(Tuple(String, String))}"


def stream(
    store: Store, columns: str = "*", where: str = "1", params: Parameters | None = None
) -> Iterator[pl.DataFrame]:
    """Give `columns` of the spans that `where` selects, in frames that are not empty.

    Within a rollout spans are in the order of attempt, trace and time. Those that name no rollout
    come with their month.

    Raises:
        QueryFailed: when ClickHouse refuses it, at once or in mid-stream.
    """
    select = f"SELECT {columns} FROM otel.spans WHERE ({where})"
    places = store.query(PLACES.format(where=where), params).row(0, named=True)
    months, apart = places["months"], [tuple(each.values()) for each in places["apart"]]
    if len(months) < 2:
        yield from store.stream(f"{select} {MONTH_ORDER}", params)
        return
    if len(apart) > MANY:
        yield from store.stream(f"{select} {ROLLOUT_ORDER}", params)
        return
    given = {**(params or {}), "apart": apart}
    within = f" AND NOT {APART}" if apart else ""
    for month in months:
        sql = f"{select} AND {MONTH} = {month}{within} {MONTH_ORDER}"
        yield from store.stream(sql, given)
    if apart:
        yield from store.stream(f"{select} AND {APART} {ROLLOUT_ORDER}", given)
