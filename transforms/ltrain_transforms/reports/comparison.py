"""Two versions of a policy on the same tasks: the difference of each task, and of their mean."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from ltrain_collector.store import Store
from ltrain_transforms.errors import NothingToShow
from ltrain_transforms.reports.policy import IDENTIFIER
from ltrain_transforms.reports.waves import COUNTING, OUTCOME, POLICIES, last_scores
from ltrain_transforms.scores import Interval, mean, mean_interval, paired_differences
from ltrain_transforms.traces import Role, sender_roles

SCORES = f"""
WITH sampled AS (
    SELECT RolloutId AS rollout, max(toString(RunId)) AS run, max(toInt64(Wave)) AS wave,
        max(TaskId) AS task, {POLICIES} AS versions
    FROM otel.spans
    WHERE PolicyName IN {{{{policies:Array(String)}}}} AND Mode = {{{{mode:String}}}}
        AND RolloutId != ''
    GROUP BY rollout
    HAVING length(versions) = 1 AND versions[1] IN {{{{versions:Array(String)}}}}
),
ended AS (
    SELECT RolloutId AS rollout, {OUTCOME} AS outcome
    FROM otel.spans WHERE RolloutId IN (SELECT rollout FROM sampled) GROUP BY rollout
),
judged AS (
    {last_scores("SELECT rollout FROM sampled", where="name = {{name:String}}")}
)
SELECT versions[1] AS version, run, wave, task, rollout, outcome,
    if(rollout IN (SELECT rollout FROM judged), score, 0.) AS score
FROM sampled LEFT JOIN ended USING rollout LEFT JOIN judged USING rollout
WHERE outcome IN {{{{counting:Array(String)}}}} OR outcome = ''
ORDER BY version, task, rollout
"""
"""The rollouts that one of two versions sampled; one that ended without the evaluation has 0."""


@dataclass(frozen=True, slots=True)
class TaskScores:
    task: str
    a: float
    b: float
    rollouts: tuple[int, int]
    """The number of rollouts with each version."""

    @property
    def difference(self) -> float:
        return self.b - self.a


@dataclass(frozen=True, slots=True)
class Comparison:
    a: str
    b: str
    mode: str
    name: str
    """The evaluation that is compared."""
    tasks: tuple[TaskScores, ...]
    """The tasks that both have, the worst difference first."""
    only: tuple[int, int]
    """Number of tasks that only one of them has."""
    interval: Interval | None
    """Of the mean difference over tasks; None without spread."""

    @property
    def difference(self) -> float | None:
        """The mean difference over tasks; None if no task is in both."""
        return mean([task.difference for task in self.tasks])


def read_scores(
    store: Store, a: str, b: str, mode: str, name: str, trust: Sequence[str]
) -> pl.DataFrame:
    """Return the rollouts of two versions: `version`, `run`, `wave`, `task`, `rollout`, `score`.

    Args:
        a, b: `NAME@VERSION`.

    Raises:
        NothingToShow: when a version is not of this form, or has no rollout in this mode.
    """
    for version in (a, b):
        found = IDENTIFIER.fullmatch(version)
        if found is None or found["version"] is None:
            raise NothingToShow(f"'{version}' is not a version of a policy. Write NAME@VERSION.")
    sql = SCORES.format(runner=sender_roles.role_condition(Role.RUNNER, trust))
    parameters = {
        "policies": [version.rpartition("@")[0] for version in (a, b)],
        "versions": [a, b],
        "mode": mode,
        "name": name,
        "counting": list(COUNTING),
    }
    rows = store.query(sql, parameters)
    for version in (a, b):
        if rows.filter(version=version).is_empty():
            raise NothingToShow(
                f"The store has no rollout in mode '{mode}' that {version} alone sampled."
            )
    return rows


def compare(rows: pl.DataFrame, a: str, b: str, mode: str, name: str) -> Comparison:
    """Compare two versions by the result of `read_scores`."""
    means = rows.group_by("version", "task").agg(pl.col("score").mean(), pl.len())
    first, second = (
        {task: (score, count) for task, score, count in own.iter_rows()}
        for own in (means.filter(version=one).select("task", "score", "len") for one in (a, b))
    )
    scores = [{task: score for task, (score, _) in each.items()} for each in (first, second)]
    differences = paired_differences(*scores)
    tasks = [
        TaskScores(task, first[task][0], second[task][0], (first[task][1], second[task][1]))
        for task in sorted(differences, key=lambda task: (differences[task], task))
    ]
    only = (len(first.keys() - second.keys()), len(second.keys() - first.keys()))
    interval = mean_interval([differences[task] for task in sorted(differences)])
    return Comparison(a, b, mode, name, tuple(tasks), only, interval)
