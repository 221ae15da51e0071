"""The report on one task of a run: its rollouts, wave by wave, with their rewards."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from ltrain_collector.store import Store
from ltrain_transforms.errors import NothingToShow
from ltrain_transforms.reports.references import GroupReference, Kind, Reference
from ltrain_transforms.reports.report import Cell, Chart, Facts, Grid, Report, format_cell
from ltrain_transforms.reports.waves import OUTCOME, POLICIES, last_scores
from ltrain_transforms.traces import Role, sender_roles

OF_RUN = "(run = '' OR run = {{run:String}}) AND name = {{name:String}}"
ROLLOUTS = f"""
WITH attempted AS (
    SELECT RolloutId AS rollout, max(toString(Mode)) AS mode, max(toInt64(Wave)) AS wave,
        max(toInt64(SampleIndex)) AS sample, {OUTCOME} AS outcome, {POLICIES} AS policies
    FROM otel.spans
    WHERE RunId = {{{{run:String}}}} AND TaskId = {{{{task:String}}}} AND RolloutId != ''
    GROUP BY rollout
),
judged AS (
    {last_scores("SELECT rollout FROM attempted", where=OF_RUN)}
)
SELECT wave, mode, rollout, sample, outcome, policies,
    if(rollout IN (SELECT rollout FROM judged), score, NULL) AS score
FROM attempted LEFT JOIN judged USING rollout
ORDER BY wave, mode, score DESC, rollout
"""
GROUP = """
SELECT rollout, sample, score, outcome FROM ({rollouts})
WHERE mode = {{mode:String}} AND wave = {{wave:Int64}}
ORDER BY sample, rollout LIMIT {{limit:UInt32}}
"""
MAX_SIBLINGS = 64
"""Rollouts of a group that are read for the page of one of them."""
SHADES = 4
"""Shades of a rollout in its group: 0 for the least reward, to this one for the most."""
COLUMNS = ("wave", "policy", "rollouts", "mean", "rollouts by reward")


def task_report(
    store: Store,
    run: str,
    task: str,
    name: str = "reward",
    trust: Sequence[str] = sender_roles.TRUSTED,
) -> Report:
    """Return the report on a task.

    Args:
        name: the evaluation that is shown.

    Raises:
        NothingToShow: when the run has no rollout of the task.
    """
    runner = sender_roles.role_condition(Role.RUNNER, trust)
    parameters = {"run": run, "task": task, "name": name}
    rollouts = store.query(ROLLOUTS.format(runner=runner), parameters)
    if rollouts.is_empty():
        raise NothingToShow(f"Run '{run}' has no rollout of a task '{task}' in the store.")
    waves = rollouts.partition_by("wave", "mode", maintain_order=True)
    modes = rollouts["mode"].unique().sort().to_list()
    series = tuple(
        (mode, tuple(_means(own for own in waves if own["mode"][0] == mode))) for mode in modes
    )
    facts = Facts("Task", (("run", Reference(Kind.RUN, run)), ("rollouts", f"{rollouts.height:,}")))
    chart = Chart(f"Mean {name}", "wave", name, tuple(one for one in series if one[1]))
    rows = tuple(_row(run, task, own) for own in waves)
    parts = (facts, *((chart,) if chart.series else ()), Grid("Waves", COLUMNS, rows))
    return Report(f"task {task}", "", parts, {**parameters, "rollouts": rollouts.to_dicts()})


@dataclass(frozen=True, slots=True)
class Sibling:
    """A rollout among those of its group."""

    reference: Reference
    sample: int | None
    score: float | None
    outcome: str
    shade: int = 0

    def describe(self) -> str:
        """Return its reward, or how it ended."""
        return f"sample {self.sample}: {_label(self.outcome, self.score)}"


def read_siblings(
    store: Store,
    group: GroupReference,
    name: str = "reward",
    trust: Sequence[str] = sender_roles.TRUSTED,
) -> list[Sibling]:
    """Return the rollouts of a group, in the order of their samples.

    Args:
        name: the evaluation by which they are shaded.
    """
    runner = sender_roles.role_condition(Role.RUNNER, trust)
    sql = GROUP.format(rollouts=ROLLOUTS.format(runner=runner))
    place = {"run": group.run, "task": group.task, "mode": group.mode, "wave": group.wave}
    found = store.query(sql, {**place, "name": name, "limit": MAX_SIBLINGS})
    scores = found["score"].drop_nulls()
    least, most = (scores.min(), scores.max()) if scores.len() else (0.0, 0.0)
    width = float(most) - float(least)  # type: ignore[arg-type]
    return [
        Sibling(
            *(Reference(Kind.ROLLOUT, rollout), sample, score, outcome),
            shade=round((score - least) / width * SHADES) if score is not None and width else 0,
        )
        for rollout, sample, score, outcome in found.iter_rows()
    ]


def _means(waves: Iterable[pl.DataFrame]) -> Iterator[tuple[float, float]]:
    """Yield the number of each wave and the mean of its scores, if it has any."""
    for own in waves:
        scores = own["score"].drop_nulls().to_list()
        if scores:
            yield own["wave"][0], sum(scores) / len(scores)


def _row(run: str, task: str, own: pl.DataFrame) -> tuple[Cell, ...]:
    wave, mode = own["wave"][0], own["mode"][0]
    policies = sorted({policy for policies in own["policies"].to_list() for policy in policies})
    scores = tuple(
        Reference(Kind.ROLLOUT, rollout, _label(outcome, score))
        for rollout, outcome, score in own.select("rollout", "outcome", "score").iter_rows()
    )
    return (
        GroupReference(run, mode, wave, task, f"{mode} {wave}"),
        tuple(Reference(Kind.POLICY, policy) for policy in policies),
        own.height,
        next((mean for _, mean in _means([own])), None),
        scores,
    )


def _label(outcome: str, score: float | None) -> str:
    return format_cell(score) if score is not None else outcome or "open"
