"""The state of each wave in a store: how many spans it has, and whether it is closed.

A closed wave is credited once. An incremental build skips a closed wave that has not changed.
"""

from collections.abc import Iterable
from typing import Any

from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_transforms.recipe import Source
from ltrain_transforms.source.reader import (
    WAVE_SQL,
    Selection,
    runner_condition,
    selection_condition,
)
from ltrain_transforms.traces import sender_roles

WaveStates = dict[str, dict[str, Any]]
"""`spans`, `ingested` and `closed` of each wave, by `<run>/<mode>/<wave>`."""


def read_waves(store: Store, source: Source, selection: Selection) -> WaveStates:
    """Return the state of each selected wave; an empty one where executions are no rollouts.

    A wave is closed when its runners closed every rollout that they dispatched. Rollouts that an
    agent invents do not count.
    """
    if source.execution != "rollout":
        return {}
    where, params = selection_condition(source, selection)
    by_runner = runner_condition(sender_roles.trusted_senders(source.trust))
    closing = f"SpanName = '{attributes.SPAN_ROLLOUT}' AND {by_runner}"
    sql = (
        f"SELECT {WAVE_SQL} AS place, toInt64(count()) AS spans, "
        "toString(max(IngestedAt)) AS ingested, "
        f"uniqExactIf(RolloutId, {by_runner}) AS dispatched, "
        f"uniqExactIf(RolloutId, {closing}) AS ended "
        f"FROM otel.spans WHERE Mode != '' AND {where} GROUP BY place ORDER BY place"
    )
    return {
        row.pop("place"): row | {"closed": 0 < row.pop("dispatched") == row.pop("ended")}
        for row in store.query(sql, params).to_dicts()
    }


def are_unchanged(before: WaveStates, now: WaveStates) -> bool:
    """Return whether every wave of `before` has the same state now."""
    return all(now.get(place) == known for place, known in before.items())


def has_late_spans(store: Store, source: Source, known: Iterable[str], since: str) -> bool:
    """Return whether spans without a rollout arrived after `since` in traces of known waves."""
    params = {"known": list(known), "since": since}
    of_waves = f"FROM otel.spans WHERE RolloutId != '' AND {WAVE_SQL} IN {{known:Array(String)}}"
    linked = f"hasAny(`Links.TraceId`, (SELECT groupUniqArray(TraceId) {of_waves}))"
    sql = (
        "SELECT count() AS late FROM otel.spans WHERE RolloutId = '' "
        "AND IngestedAt > toDateTime64({since:String}, 3) "
        f"AND (TraceId IN (SELECT TraceId {of_waves}) OR {linked})"
    )
    return bool(store.query(sql, params)["late"][0])
