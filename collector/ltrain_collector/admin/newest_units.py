"""The newest rollouts and traces that a filter selects.

The newest spans are read first, with what the store has of their rollouts and traces. Only a filter
that selects too few of these reads every span.
"""

import polars as pl

from ltrain_collector.admin.trace_filter import Position, TraceFilter
from ltrain_collector.promoted_columns import UNIT_SQL
from ltrain_collector.store import Store

WINDOWS = (32, 512)
"""Spans that a search reads for each wanted rollout or trace; the second number if the first finds
too few."""
MAX_UNITS = 5_000
"""Maximum number of rollouts and traces in one query."""

_PLACE = "toBool(any(RolloutId) != '') AS is_rollout, groupUniqArray(toString(RunId)) AS runs"
_WINDOW = f"""
SELECT {UNIT_SQL} AS unit, {_PLACE}, toInt64(count()) AS spans,
    toUnixTimestamp64Nano({{furthest}}(Timestamp)) AS furthest
FROM otel.spans
WHERE {{where}} AND Timestamp {{until}} (
    SELECT {{furthest}}(time) FROM (
        SELECT Timestamp AS time FROM otel.spans WHERE {{where}}
        ORDER BY time {{order}} LIMIT {{count}}
    )
)
GROUP BY unit
"""
_UNITS = f"""
SELECT {UNIT_SQL} AS unit, {_PLACE}, toUnixTimestamp64Nano(max(Timestamp)) AS latest
FROM otel.spans WHERE {{where}} GROUP BY unit HAVING {{having}} ORDER BY {{order}} LIMIT {{limit}}
"""
_NAMED = f"""
SELECT {UNIT_SQL} AS unit, {_PLACE} FROM otel.spans
WHERE RolloutId = {{unit:String}} OR RolloutId = '' AND TraceId = {{unit:String}} GROUP BY unit
"""


def units_condition(
    units: pl.DataFrame, columns: tuple[str, str, str] = ("RunId", "RolloutId", "TraceId")
) -> tuple[str, dict[str, object]]:
    """Return the SQL condition on the spans of units, and its parameters.

    Spans are stored in the order of their runs. Those of a rollout name its run, or no run.

    Args:
        units: `unit`, `is_rollout`, and the `runs` that some of its spans name.
        columns: those of run, rollout and trace.
    """
    run, rollout, trace = columns
    rollouts, traces = units.filter("is_rollout"), units.filter(~pl.col("is_rollout"))
    of_rollouts = f"{rollout} IN {{rollouts:Array(String)}}"
    of_traces = f"{rollout} = '' AND {trace} IN {{traces:Array(String)}}"
    params: dict[str, object] = {
        "rollouts": rollouts["unit"].to_list(),
        "traces": traces["unit"].to_list(),
    }
    if rollouts.filter(pl.col("runs") == [""]).is_empty():  # else other spans may name a run
        of_rollouts += f" AND {run} IN {{runs:Array(String)}}"
        params["runs"] = ["", *rollouts["runs"].explode(empty_as_null=False).unique()]
    # a condition of one kind takes half the time of both
    conditions = [sql for sql, of in ((of_rollouts, rollouts), (of_traces, traces)) if of.height]
    return f"({' OR '.join(conditions) or 'false'})", params


class UnitSearch:
    """A search of a store: `unit`, `is_rollout`, `runs` and `latest` (ns), the nearest first."""

    def __init__(
        self,
        store: Store,
        selection: TraceFilter,
        older_than: Position | None = None,
        newer_than: Position | None = None,
    ) -> None:
        """Start at the newest unit, or where a position is.

        Args:
            older_than: search from there to older ones.
            newer_than: search from there to newer ones.
        """
        self._store = store
        self._where, self._params = selection.condition()
        self._having = selection.having()
        self._backwards = newer_than is not None
        self._order = "latest, unit DESC" if self._backwards else "latest DESC, unit"
        self._from = "true"
        if place := newer_than or older_than:
            self._params |= {"latest": place.latest, "id": place.id}
            sign = ">" if self._backwards else "<"
            self._from = f"Timestamp {sign}= fromUnixTimestamp64Nano({{latest:Int64}})"
            self._having += f" AND (latest, {{id:String}}) {sign} ({{latest:Int64}}, unit)"

    def find(self, limit: int) -> pl.DataFrame:
        """Return the units that are nearest to the position, at most `limit`."""
        for spans in WINDOWS:
            window = self._window(limit * spans)
            is_all = window["spans"].sum() < limit * spans
            if window.height > MAX_UNITS:
                break
            found = self._query(*units_condition(window), limit)
            if is_all:
                return found
            # the window lacks units whose latest span is beyond its end
            end = window["furthest"].max() if self._backwards else window["furthest"].min()
            is_near = pl.col("latest") <= end if self._backwards else pl.col("latest") >= end
            if (near := found.filter(is_near)).height == limit:
                return near
        return self._query("true", {}, limit)

    def find_one(self, unit: str) -> pl.DataFrame:
        """Return the unit of this id, if the search finds it."""
        named = self._store.query(_NAMED, {"unit": unit})
        return self._query(*units_condition(named), 1)

    def _window(self, spans: int) -> pl.DataFrame:
        """Return the units of so many spans, and the runs and the furthest span of each."""
        sql = _WINDOW.format(
            where=f"{self._where} AND {self._from}",
            furthest="max" if self._backwards else "min",
            until="<=" if self._backwards else ">=",
            order="ASC" if self._backwards else "DESC",
            count=spans,
        )
        return self._store.query(sql, self._params)

    def _query(self, where: str, params: dict[str, object], limit: int) -> pl.DataFrame:
        sql = _UNITS.format(
            where=f"{self._where} AND {where}", having=self._having, order=self._order, limit=limit
        )
        return self._store.query(sql, self._params | params)
