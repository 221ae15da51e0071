"""The report on one wave: what is left of its rollouts at each step, and its groups."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from ltrain_collector.store import Store
from ltrain_transforms.datasets import Dataset, list_manifests
from ltrain_transforms.errors import NothingToShow
from ltrain_transforms.reports.dataset import drop_counts, trained_tokens
from ltrain_transforms.reports.references import GroupReference, Kind, Reference, WaveReference
from ltrain_transforms.reports.report import Cell, Facts, Grid, Report
from ltrain_transforms.reports.waves import COUNTING, OUTCOME, POLICIES, last_scores
from ltrain_transforms.traces import Role, sender_roles

ROLLOUTS = f"""
SELECT RolloutId AS rollout, max(TaskId) AS task,
    {OUTCOME} AS outcome, {POLICIES} AS policies
FROM otel.spans
WHERE RunId = {{{{run:String}}}} AND Mode = {{{{mode:String}}}} AND Wave = {{{{wave:UInt32}}}}
    AND RolloutId != ''
GROUP BY rollout ORDER BY task, rollout
"""
SAMPLED = """
    SELECT RolloutId FROM otel.spans
    WHERE RunId = {run:String} AND Mode = {mode:String} AND Wave = {wave:UInt32} AND RolloutId != ''
"""
NEWEST = """
SELECT toString(RunId) AS run, toInt64(argMax(Wave, Timestamp)) AS wave FROM otel.spans
WHERE RunId != '' AND Mode = 'train' AND RolloutId != ''
GROUP BY run ORDER BY max(Timestamp) DESC, run LIMIT 1
"""
OF_RUN = "(run = '' OR run = {run:String})"
SCORES = last_scores(SAMPLED, "rollout, name", OF_RUN) + " ORDER BY rollout, name"


def newest_training_wave(store: Store) -> WaveReference | None:
    """Return the training wave with the newest span; None if there is none."""
    found = store.query(NEWEST).rows()
    return WaveReference(found[0][0], "train", found[0][1]) if found else None


def wave_report(
    store: Store, home: Path, wave: WaveReference, trust: Sequence[str] = sender_roles.TRUSTED
) -> Report:
    """Return the report on a wave.

    Raises:
        NothingToShow: when the store has no rollout of it.
    """
    place = {"run": wave.run, "mode": wave.mode, "wave": wave.wave}
    runner = sender_roles.role_condition(Role.RUNNER, trust)
    rollouts = store.query(ROLLOUTS.format(runner=runner), place)
    if rollouts.is_empty():
        raise NothingToShow(
            f"The store has no rollout of wave {wave.wave} of run '{wave.run}' in mode "
            f"'{wave.mode}'. `ltrain show run:{wave.run}` lists its waves."
        )
    scores = store.query(SCORES, place)
    policies = sorted({name for row in rollouts["policies"].to_list() for name in row})
    outcomes = rollouts["outcome"].value_counts().sort("outcome").iter_rows()
    facts = Facts(
        "Wave",
        (
            ("run", Reference(Kind.RUN, wave.run)),
            ("policies", tuple(Reference(Kind.POLICY, name) for name in policies) or "none"),
            ("rollouts", f"{rollouts.height:,}"),
            *((f"rollouts {name or 'without an end'}", f"{count:,}") for name, count in outcomes),
        ),
    )
    datasets = list(wave_datasets(home, wave))
    parts: tuple[Facts | Grid, ...] = (
        facts,
        *(_funnel(dataset, rollouts) for dataset in datasets),
        _groups(wave, rollouts, scores),
        *(drop_counts(dataset.drops) for dataset in datasets),
    )
    data = {**place, "rollouts": rollouts.to_dicts(), "scores": scores.to_dicts()}
    return Report(f"wave {wave} of run {wave.run}", "", parts, data)


def wave_datasets(home: Path, wave: WaveReference) -> Iterator[Dataset]:
    """Yield the datasets that were built of this wave, one for each policy."""
    key = f"{wave.run}/{wave.mode}/{wave.wave}"
    for path, manifest in list_manifests(home):
        if key in manifest.get("waves", {}):
            yield Dataset.open(path)


def _funnel(dataset: Dataset, rollouts: pl.DataFrame) -> Grid:
    """Return what is left of a wave at each step of its build."""
    counts = dataset.counts
    ended = rollouts.filter(pl.col("outcome").is_in(COUNTING)).height
    rows: tuple[tuple[Cell, ...], ...] = (
        ("rollouts in the store", rollouts.height),
        ("rollouts that the agent ended", ended),
        ("executions", counts["executions"]),
        ("calls", counts["calls"]),
        ("calls of the policy with an advantage", counts["transitions"]),
        ("rows", counts["samples"]),
        ("trained tokens", trained_tokens(dataset)),
    )
    return Grid(f"From rollouts to tokens, dataset {dataset.id}", ("step", "count"), rows)


def _groups(wave: WaveReference, rollouts: pl.DataFrame, scores: pl.DataFrame) -> Grid:
    """Return a row for each task: its rollouts and the means of their evaluations.

    The groups whose first evaluation differs most between rollouts come first.
    """
    names = sorted(scores["name"].unique().to_list(), key=lambda name: (name != "reward", name))
    counted = rollouts.filter(pl.col("outcome").is_in(["", *COUNTING]))
    wide = counted.select("rollout", "task").join(
        scores.pivot("name", index="rollout", values="score", maintain_order=True)
        if names
        else scores.select("rollout").unique(),
        "rollout",
        "left",
    )
    # a rollout that ended without an evaluation counts as 0
    by_task = wide.group_by("task").agg(
        pl.len().alias("rollouts"),
        *(
            value.alias(f"{name} {what}")
            for name in names[:1]
            for what, value in _spread(pl.col(name).fill_null(0.0)).items()
        ),
        *(pl.col(name).fill_null(0.0).mean().alias(f"{name} mean") for name in names),
    )
    if names:
        width = pl.col(f"{names[0]} max") - pl.col(f"{names[0]} min")
        by_task = by_task.sort(-width, "task")
    else:
        by_task = by_task.sort("task")
    rows: list[tuple[Cell, ...]] = [
        (GroupReference(wave.run, wave.mode, wave.wave, task), *values)
        for task, *values in by_task.iter_rows()
    ]
    return Grid("Groups", tuple(by_task.columns), tuple(rows))


def _spread(score: pl.Expr) -> dict[str, pl.Expr]:
    return {"min": score.min(), "max": score.max()}
