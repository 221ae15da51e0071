"""How a wave stands, asked of the store: outcomes and evaluations of its rollouts.

The store, not the runner's memory, is asked, so a wave that a kill cut in two counts whole.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from ltrain_collector.store import Store
from ltrain_instrument.attributes import OUTCOME, SPAN_ROLLOUT
from ltrain_transforms import roles
from ltrain_transforms.roles import Role

CLOSED = f"""
SELECT RolloutId AS rollout, argMax(SpanAttributes['{OUTCOME}'], Timestamp) AS outcome
FROM otel.spans
WHERE RunId = {{run:String}} AND Mode = {{mode:String}} AND Wave = {{wave:UInt32}}
    AND SpanName = '{SPAN_ROLLOUT}' AND %s
GROUP BY rollout
"""

EVALUATED = """
SELECT rollout, name, argMax(value, (judged, span)) AS value
FROM otel.evaluations
WHERE run = {run:String} AND mode = {mode:String} AND wave = {wave:UInt32}
    AND (trace, span) IN (SELECT TraceId, SpanId FROM otel.spans WHERE RunId = {run:String} AND %s)
GROUP BY rollout, name
"""

COUNTING = ("ok", "error", "timeout")
"""Outcomes that are the agent's own; an evaluation it lacks is 0."""


@dataclass(frozen=True, slots=True)
class Standing:
    outcomes: dict[str, int]
    """Rollouts by outcome."""
    evaluations: dict[str, float]
    """Mean of each evaluation over the rollouts that count."""

    @property
    def rollouts(self) -> int:
        return sum(self.outcomes.values())


def standing(store: Store, run: str, mode: str, wave: int, trust: Sequence[str] = ()) -> Standing:
    """Return how (`run`, `mode`, `wave`) stands; `trust` is the recipe's `source.trust`."""
    asked = {"run": run, "mode": mode, "wave": wave}
    runner = roles.of(Role.RUNNER, roles.senders(trust))
    closed, evaluated = (store.query(sql % runner, asked) for sql in (CLOSED, EVALUATED))
    outcomes = Counter(closed["outcome"].to_list())
    counted = closed.filter(pl.col("outcome").is_in(COUNTING))["rollout"]
    values = evaluated.filter(pl.col("rollout").is_in(counted.implode()))
    sums = values.group_by("name").agg(pl.col("value").sum()).sort("name")
    rollouts = max(len(counted), 1)
    return Standing(dict(outcomes), {name: total / rollouts for name, total in sums.iter_rows()})
