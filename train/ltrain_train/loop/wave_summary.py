"""Summarizes a wave from the store: the outcomes and evaluations of its rollouts.

The store has all rollouts of a wave, also those before a kill, unlike the runner's memory.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from ltrain_collector.store import Store
from ltrain_instrument.attributes import OUTCOME, OUTCOME_REASON, SPAN_ROLLOUT
from ltrain_train.rollout import Failure
from ltrain_train.workers import COUNTED_OUTCOMES
from ltrain_transforms.recipe import Reward
from ltrain_transforms.traces import Role, sender_roles

CLOSED_SQL = f"""
SELECT RolloutId AS rollout, argMax(SpanAttributes['{OUTCOME}'], Timestamp) AS outcome,
    argMax(SpanAttributes['{OUTCOME_REASON}'], Timestamp) AS reason,
    argMax(Attempt, Timestamp) AS attempt,
    any(TaskId) AS task
FROM otel.spans
WHERE RunId = {{run:String}} AND Mode = {{mode:String}} AND Wave = {{wave:UInt32}}
    AND SpanName = '{SPAN_ROLLOUT}' AND %s
GROUP BY rollout
"""

EVALUATED_SQL = """
SELECT rollout, attempt, name, argMax(value, (judged, span)) AS value
FROM otel.evaluations
WHERE run = {run:String} AND mode = {mode:String} AND wave = {wave:UInt32}
    AND (trace, span) IN (SELECT TraceId, SpanId FROM otel.spans WHERE RunId = {run:String} AND %s)
GROUP BY rollout, attempt, name
"""


@dataclass(frozen=True, slots=True)
class WaveSummary:
    """The outcomes and evaluations of one wave."""

    outcomes: dict[str, int]
    """Number of rollouts by outcome."""
    evaluations: dict[str, float]
    """Mean of each evaluation over the counted rollouts, each with its last attempt; one that a
    rollout lacks is 0."""
    failures: Sequence[Failure] = ()
    """The rollouts that are not ok."""

    @property
    def rollouts(self) -> int:
        """Number of rollouts."""
        return sum(self.outcomes.values())


def outcome_score(rewards: Sequence[Reward], evaluations: Mapping[str, float]) -> float | None:
    """Return the sum of the rewarded evaluations by their weights; None if there are none."""
    values = [
        reward.weight * evaluations[reward.evaluation]
        for reward in rewards
        if reward.evaluation is not None and reward.evaluation in evaluations
    ]
    return sum(values) if values else None


def summarize_wave(
    store: Store, run: str, mode: str, wave: int, trust: Sequence[str] = ()
) -> WaveSummary:
    """Return the summary of (`run`, `mode`, `wave`); `trust` is the recipe's `source.trust`."""
    parameters = {"run": run, "mode": mode, "wave": wave}
    from_runner = sender_roles.role_condition(Role.RUNNER, sender_roles.trusted_senders(trust))
    closed, evaluated = (
        store.query(sql % from_runner, parameters) for sql in (CLOSED_SQL, EVALUATED_SQL)
    )
    outcomes = Counter(closed["outcome"].to_list())
    counted = closed.filter(pl.col("outcome").is_in(sorted(COUNTED_OUTCOMES)))
    values = evaluated.join(counted, on=["rollout", "attempt"], how="semi")
    sums = values.group_by("name").agg(pl.col("value").sum()).sort("name")
    rollouts = max(len(counted), 1)
    evaluations = {name: total / rollouts for name, total in sums.iter_rows()}
    failed = closed.filter(pl.col("outcome") != "ok").sort("rollout")
    failed = failed.with_columns(pl.col("attempt").cast(pl.Int64))
    return WaveSummary(dict(outcomes), evaluations, [Failure(**row) for row in failed.to_dicts()])
