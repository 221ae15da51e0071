"""A run by its waves: evaluations, rules, validation, drops, learning and where the time went."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import polars as pl

from ltrain_transforms.selective_drops import alarm_messages
from ltrain_transforms.show.judged import Judged
from ltrain_transforms.show.report import Cell, Chart, Facts, Grid, Report, named
from ltrain_transforms.show.waves import Update, Waves

PHASES = ("rollouts", "settle + build", "train", "publish")
"""First dispatch to last span; on to the first optimizer step; the steps; on to every server."""

METRICS = ("loss", "kl", "grad_norm", "entropy", "clip_fraction")
"""Of the learner's metrics those with a chart; every one is in the table."""

Parts = tuple[Facts | Chart | Grid, ...]
Values = dict[str, dict[int, float]]
"""Numbers by name and wave."""


def report(run: str, found: Waves, judged: Judged | None, recipe: str) -> Report:
    """Lay out a run; `recipe` says by which one it is judged, or why by none."""
    train, rest = _split(found.evaluations)
    rules = _everywhere(judged.rules, "rule", "mean", found) if judged else {}
    drops = _everywhere(_reasons(judged), "reason", "count", found) if judged else {}
    spent = seconds(found)
    metrics = {name: _metric(found.updates, name) for name in _metrics(found.updates)}
    plotted = {name: metrics[name] for name in METRICS if name in metrics}
    charts = [
        Chart("Reward in training", "wave", "mean of the rollouts", _series(train)),
        Chart("Reward by rule", "wave", "mean of the rollouts", _series(rules)),
        Chart("Validation", "wave", "mean of the rollouts", _series(rest)),
        Chart("Drops in training", "wave", "count", _series(drops)),
        Chart("Time in training", "wave", "seconds", _series(spent)),
        *(Chart(f"Step: {name}", "wave", name, _series({name: plotted[name]})) for name in plotted),
    ]
    grids = [
        _waves(found, judged),
        _table("Evaluations in training, mean of the rollouts", train),
        _table("Validation, mean of the rollouts", rest),
        _table("Rules in training, mean of the rollouts", rules, "none fired, or no recipe"),
        _table("Drops in training", drops, "none, or no recipe"),
        _table("Seconds in training", spent),
        _table("Optimizer steps, mean of the wave's", metrics, "no training span in the store"),
    ]
    waves = found.waves.select("mode", "wave").unique().height
    rollouts = found.waves["rollouts"].sum()
    policies = sorted({one for row in found.waves["policies"].to_list() for one in row})
    facts = Facts(
        "Run",
        (
            ("waves", f"{waves:,}"),
            ("rollouts", f"{rollouts:,}"),
            ("policies", named(policies)),
            ("judged by", recipe),
        ),
    )
    alarms = tuple(alarm_messages(judged.alarms)) if judged else ()
    told = (Facts("Alarms", alarms),) if alarms else ()
    parts: Parts = (facts, *told, *(chart for chart in charts if chart.series), *grids)
    return Report(f"run {run}", "", parts, _data(run, found, judged, spent))


def seconds(found: Waves) -> Values:
    """Give the seconds of each phase of the training waves, from the spans' own times."""
    spent: Values = defaultdict(dict)
    updates = {update.wave: update for update in found.updates}
    for wave in found.waves.filter(pl.col("mode") == "train").to_dicts():
        number = wave["wave"]
        spent["rollouts"][number] = (wave["ended"] - wave["began"]) / 1e9
        update = updates.get(number)
        if update is None:
            continue
        spent["settle + build"][number] = max(update.began - wave["ended"], 0) / 1e9
        spent["train"][number] = (update.ended - update.began) / 1e9
        if update.published is not None:
            spent["publish"][number] = (update.published - update.ended) / 1e9
    return {name: spent[name] for name in PHASES if name in spent}


def _split(evaluations: pl.DataFrame) -> tuple[Values, Values]:
    """Give the evaluations of training waves and those of all others."""
    runner = pl.col("source") == "runner"
    name = pl.when(runner).then("name").otherwise(pl.format("{} (by the {})", "name", "source"))
    said = evaluations.with_columns(name=name)
    train = pl.col("mode") == "train"
    mode = pl.when(pl.col("mode") == "val").then("name").otherwise(_with_mode())
    rest = said.filter(~train).with_columns(name=mode)
    return _pivot(said.filter(train), "name", "mean"), _pivot(rest, "name", "mean")


def _with_mode() -> pl.Expr:
    return pl.format("{} ({})", "name", pl.col("mode").replace("", "no mode"))


def _reasons(judged: Judged) -> pl.DataFrame:
    return judged.drops.with_columns(reason=pl.format("{}: {}", "stage", "reason"))


def _everywhere(frame: pl.DataFrame, name: str, value: str, found: Waves) -> Values:
    """Give `value` by `name` and training wave, 0 where there is none."""
    train = pl.col("mode") == "train"
    waves = found.waves.filter(train)["wave"].sort().to_list()
    values = _pivot(frame.filter(train), name, value)
    return {key: {wave: own.get(wave, 0) for wave in waves} for key, own in values.items()}


def _pivot(frame: pl.DataFrame, name: str, value: str) -> Values:
    """Give `value` by `name` and wave, names in alphabetical order."""
    values: Values = defaultdict(dict)
    for key, wave, number in frame.sort(name, "wave").select(name, "wave", value).iter_rows():
        values[key][wave] = number
    return dict(values)


def _metrics(updates: Iterable[Update]) -> list[str]:
    return sorted({name for update in updates for step in update.steps for name in step})


def _metric(updates: Sequence[Update], name: str) -> dict[int, float]:
    """Give the mean of a metric over the steps of each wave."""
    values = {}
    for update in updates:
        said = [step[name] for step in update.steps if name in step]
        if said:
            values[update.wave] = sum(said) / len(said)
    return values


def _series(values: Values) -> tuple[tuple[str, tuple[tuple[float, float], ...]], ...]:
    return tuple((name, tuple(sorted(points.items()))) for name, points in values.items())


def _table(title: str, values: Values, empty: str = "none") -> Grid:
    waves = sorted({wave for points in values.values() for wave in points})
    rows = tuple((wave, *(points.get(wave) for points in values.values())) for wave in waves)
    return Grid(title, ("wave", *values), rows, empty)


def _waves(found: Waves, judged: Judged | None) -> Grid:
    """One row a wave: who sampled, how many rollouts ended how, and what was learned from it."""
    kinds = sorted(found.outcomes["outcome"].unique().to_list())
    counts = {
        (mode, wave, outcome): count for mode, wave, outcome, count in found.outcomes.iter_rows()
    }
    made_of = {row[:2]: row[2:] for row in judged.samples.iter_rows()} if judged else {}
    updates = {update.wave: update for update in found.updates}
    rows = []
    for wave in found.waves.to_dicts():
        place = (wave["mode"], wave["wave"])
        update = updates.get(wave["wave"]) if wave["mode"] == "train" else None
        outcomes: list[Cell] = [counts.get((*place, kind)) for kind in kinds]
        made = made_of.get(place, (None, None)) if wave["mode"] == "train" else (None, None)
        trained = (len(update.steps), update.dataset) if update else (None, None)
        policies = ", ".join(wave["policies"])
        rows.append(
            (" ".join(map(str, place)), policies, wave["rollouts"], *outcomes, *made, *trained)
        )
    learned = ("samples", "tokens", "steps", "dataset")
    columns = ("wave", "policy", "rollouts", *kinds, *learned)
    return Grid("Waves", columns, tuple(rows))


def _data(run: str, found: Waves, judged: Judged | None, spent: Values) -> dict[str, Any]:
    return {
        "run": run,
        "waves": found.waves.to_dicts(),
        "outcomes": found.outcomes.to_dicts(),
        "evaluations": found.evaluations.to_dicts(),
        "rules": judged.rules.to_dicts() if judged else None,
        "drops": judged.drops.to_dicts() if judged else None,
        "alarms": judged.alarms if judged else None,
        "samples": judged.samples.to_dicts() if judged else None,
        "seconds": spent,
        "updates": [
            {"wave": update.wave, "dataset": update.dataset, "steps": update.steps}
            for update in found.updates
        ],
    }
