"""The waves of a store as a build sees them: which are closed, and which have changed since.

A wave is credited once, when it is closed, so one that is as it was needs no second look.
"""

from collections.abc import Iterable
from typing import Any

from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_transforms import roles
from ltrain_transforms.recipe import Source
from ltrain_transforms.source import PLACE, Selection, chosen, placing

Waves = dict[str, dict[str, Any]]
"""What is known of each wave, by `<run>/<mode>/<wave>`."""


def waves(store: Store, source: Source, selection: Selection) -> Waves:
    """Count the spans of each selected wave; none where executions are no rollouts.

    A wave is closed when its runners closed each rollout that they dispatched; what an agent
    invents nobody closes.
    """
    if source.execution != "rollout":
        return {}
    where, params = chosen(source, selection)
    ours = placing(roles.senders(source.trust))
    closing = f"SpanName = '{attributes.SPAN_ROLLOUT}' AND {ours}"
    sql = (
        f"SELECT {PLACE} AS place, toInt64(count()) AS spans, "
        "toString(max(IngestedAt)) AS ingested, "
        f"uniqExactIf(RolloutId, {ours}) AS dispatched, "
        f"uniqExactIf(RolloutId, {closing}) AS ended "
        f"FROM otel.spans WHERE Mode != '' AND {where} GROUP BY place ORDER BY place"
    )
    return {
        row.pop("place"): row | {"closed": 0 < row.pop("dispatched") == row.pop("ended")}
        for row in store.query(sql, params).to_dicts()
    }


def unchanged(before: Waves, now: Waves) -> bool:
    """Say whether every wave that is in `before` is still what it was."""
    return all(now.get(place) == known for place, known in before.items())


def late(store: Store, source: Source, known: Iterable[str], since: str) -> bool:
    """Say whether spans that name no rollout came to the traces of known waves after `since`."""
    params = {"known": list(known), "since": since}
    theirs = f"FROM otel.spans WHERE RolloutId != '' AND {PLACE} IN {{known:Array(String)}}"
    linked = f"hasAny(`Links.TraceId`, (SELECT groupUniqArray(TraceId) {theirs}))"
    sql = (
        "SELECT count() AS late FROM otel.spans WHERE RolloutId = '' "
        "AND IngestedAt > toDateTime64({since:String}, 3) "
        f"AND (TraceId IN (SELECT TraceId {theirs}) OR {linked})"
    )
    return bool(store.query(sql, params)["late"][0])
