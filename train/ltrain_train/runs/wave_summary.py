"""Summarizes groups: the outcomes and evaluations of their rollouts, and their means.

The store has all rollouts of a group, also those before a kill, unlike the results of a runner.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ltrain_collector.store import Store
from ltrain_instrument.attributes import OUTCOME_REASON, SPAN_ROLLOUT
from ltrain_train.rollout import Failure, find_failures
from ltrain_train.runs.journal import Group
from ltrain_train.workers import COUNTED_OUTCOMES, WaveResult
from ltrain_transforms.recipe import Reward
from ltrain_transforms.traces import Role, sender_roles

CLOSED_SQL = f"""
SELECT RolloutId AS rollout, argMax(toString(Outcome), Timestamp) AS outcome,
    argMax(Attempt, Timestamp) AS attempt,
    any(TaskId) AS task, any(Wave) AS wave
FROM otel.spans
WHERE RunId = {{run:String}} AND Mode = {{mode:String}} AND Wave IN {{waves:Array(UInt32)}}
    AND SpanName = '{SPAN_ROLLOUT}' AND %s
GROUP BY rollout
"""

REASONS_SQL = f"""
SELECT RolloutId AS rollout, argMax(SpanAttributes['{OUTCOME_REASON}'], Timestamp) AS reason
FROM otel.spans
WHERE RunId = {{run:String}} AND RolloutId IN {{rollouts:Array(String)}}
    AND SpanName = '{SPAN_ROLLOUT}' AND %s
GROUP BY rollout
"""
"""The attributes are read only of the rollouts that failed."""

EVALUATED_SQL = """
SELECT rollout, attempt, name, argMax(value, (judged, span)) AS value
FROM otel.evaluations
WHERE run = {run:String} AND mode = {mode:String} AND wave IN {waves:Array(UInt32)}
    AND (trace, span) IN (SELECT TraceId, SpanId FROM otel.spans WHERE RunId = {run:String} AND %s)
GROUP BY rollout, attempt, name
"""


@dataclass(frozen=True, slots=True)
class CountedRollout:
    """A rollout of a wave that counts: the agent is responsible for how it ended."""

    task: str
    evaluations: dict[str, float]
    """Evaluations of the last attempt, by name. A missing evaluation counts as 0."""


@dataclass(frozen=True, slots=True)
class WaveSummary:
    """The rollouts of one wave, each with its last attempt."""

    outcomes: dict[str, int]
    """Number of rollouts by outcome."""
    counted: Sequence[CountedRollout]
    failures: Sequence[Failure] = ()
    """The rollouts that are not ok."""

    @classmethod
    def from_results(cls, results: WaveResult) -> "WaveSummary":
        """Return the summary of a wave that one runner ran from its beginning to its end."""
        counted = [
            CountedRollout(str(result.identity.task), result.rewards)
            for result in results
            if result.outcome in COUNTED_OUTCOMES
        ]
        return cls(results.outcomes, counted, find_failures(results))

    @property
    def rollouts(self) -> int:
        """Number of rollouts."""
        return sum(self.outcomes.values())

    @property
    def evaluations(self) -> dict[str, float]:
        """Mean of each evaluation over the counted rollouts."""
        sums: defaultdict[str, float] = defaultdict(float)
        for rollout in self.counted:
            for name, value in rollout.evaluations.items():
                sums[name] += value
        return {name: total / len(self.counted) for name, total in sorted(sums.items())}


def outcome_score(rewards: Sequence[Reward], evaluations: Mapping[str, float]) -> float | None:
    """Return the sum of the rewarded evaluations by their weights; None if there are none."""
    values = [
        reward.weight * evaluations[reward.evaluation]
        for reward in rewards
        if reward.evaluation is not None and reward.evaluation in evaluations
    ]
    return sum(values) if values else None


def group_scores(
    rewards: Sequence[Reward], counted: Sequence[CountedRollout]
) -> dict[str, list[float]]:
    """Return the scores of each task's rollouts; one without the rewarded evaluations has 0."""
    groups: defaultdict[str, list[float]] = defaultdict(list)
    for rollout in counted:
        groups[rollout.task].append(outcome_score(rewards, rollout.evaluations) or 0.0)
    return dict(sorted(groups.items()))


def task_scores(rewards: Sequence[Reward], counted: Sequence[CountedRollout]) -> dict[str, float]:
    """Return the mean score of each task."""
    groups = group_scores(rewards, counted)
    return {task: sum(scores) / len(scores) for task, scores in groups.items()}


def summarize_groups(
    store: Store, run: str, mode: str, groups: Collection[Group], trust: Sequence[str] = ()
) -> WaveSummary:
    """Return the summary of a run's groups in a mode.

    Args:
        groups: wave and task of each.
    """
    parameters = {"run": run, "mode": mode, "waves": sorted({wave for wave, _ in groups})}
    from_runner = sender_roles.role_condition(Role.RUNNER, sender_roles.trusted_senders(trust))
    closed, evaluated = (
        store.query(sql % from_runner, parameters) for sql in (CLOSED_SQL, EVALUATED_SQL)
    )
    closed = closed.sort("rollout")
    values: defaultdict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    for rollout, attempt, name, value in evaluated.sort("name").iter_rows():
        values[rollout, attempt][name] = value
    rows = [
        row
        for wave, row in zip(closed["wave"], closed.drop("wave").to_dicts(), strict=True)
        if (wave, row["task"]) in groups
    ]
    failed = [row for row in rows if row["outcome"] != "ok"]
    parameters["rollouts"] = [row["rollout"] for row in failed]
    reasons = dict(store.query(REASONS_SQL % from_runner, parameters).iter_rows()) if failed else {}
    return WaveSummary(
        dict(Counter(row["outcome"] for row in rows)),
        [
            CountedRollout(row["task"], values[row["rollout"], row["attempt"]])
            for row in rows
            if row["outcome"] in COUNTED_OUTCOMES
        ],
        [
            Failure(**{**row, "attempt": int(row["attempt"]), "reason": reasons[row["rollout"]]})
            for row in failed
        ],
    )
