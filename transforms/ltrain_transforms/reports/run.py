"""The report on a run, by wave: evaluations, rules, validation, drops, learning and time."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import polars as pl

from ltrain_transforms.reports.alarms import alarm_facts
from ltrain_transforms.reports.dataset import PROMPTS
from ltrain_transforms.reports.references import Kind, Reference, WaveReference
from ltrain_transforms.reports.report import (
    Cell,
    Chart,
    Facts,
    Grid,
    Interval,
    Report,
    Share,
    Tile,
    Tiles,
    format_cell,
    intervals,
)
from ltrain_transforms.reports.run_state import RunState
from ltrain_transforms.reports.wave_rewards import RecipeResults
from ltrain_transforms.reports.waves import RunWaves, WaveUpdate

PHASES = ("rollouts", "settle + build", "train", "publish")
"""Each phase ends where the next begins: with the last span, the first step and the last step.

The last one ends when every server has loaded the version."""

REWARDS = "rewards"
"""The stage whose drops are evaluations, not rollouts."""
METRICS = (
    "loss",
    "kl",
    "kl_reference",
    "grad_norm",
    "entropy",
    "clip_fraction",
    "learning_rate",
    "value_loss",
    "explained_variance",
    "critic_grad_norm",
)
"""The metrics of the learner that have a chart; the table has all of them."""

Parts = tuple[Facts | Chart | Grid | Tiles, ...]
WaveValues = dict[str, dict[int, float]]
"""Numbers by name and wave."""


def run_report(
    run: str,
    run_waves: RunWaves,
    results: RecipeResults | None,
    recipe_label: str,
    state: RunState,
    worth_a_look: Grid | None = None,
) -> Report:
    """Return the report on a run.

    Args:
        recipe_label: the recipe of `results`, or why there is none.
        worth_a_look: the result of `look_at`.
    """
    parts_of = _split_evaluations(run_waves.evaluations)
    train, test, others = (_pivot(each, "name", "mean") for each in parts_of)
    _, test_bands, held_out_bands = map(_bands, parts_of)
    marks = tuple((alarm.wave, f"{alarm.name}: {alarm.message}") for alarm in run_waves.alarms)
    rules = _by_training_wave(results.rules, "rule", "mean", run_waves) if results else {}
    drops = _by_training_wave(_reasons(results), "reason", "count", run_waves) if results else {}
    prompts = _by_training_wave(results.prompts, "prompt", "calls", run_waves) if results else {}
    durations = phase_seconds(run_waves)
    updates = run_waves.updates
    metrics = {name: metric_means(updates, name) for name in _metric_names(updates)}
    plotted = {name: metrics[name] for name in METRICS if name in metrics}
    training, validation, testing = ((run, mode) for mode in ("train", "val", "test"))
    only_val = {wave.mode for wave in run_waves.waves} <= {"train", "val", "test"}
    mean = "mean of the rollouts"
    charts = [
        Chart(
            *("Validation, 95 % interval", "wave", mean, _series(others)),
            waves=validation if only_val else None,
            bands=held_out_bands,
        ),
        Chart("Reward in training", "wave", mean, _series(train), training, marks=marks),
        Chart("Reward by rule", "wave", mean, _series(rules), training),
        Chart("Test, 95 % interval", "wave", mean, _series(test), testing, test_bands),
        Chart("Drops in training", "wave", "count", _series(drops), training),
        Chart("Time in training", "wave", "seconds", _series(durations), training),
        *(
            Chart(f"Step: {name}", "wave", name, _series({name: plotted[name]}), training)
            for name in plotted
        ),
    ]
    grids = [
        _wave_table(run, run_waves, results),
        *((worth_a_look,) if worth_a_look is not None and worth_a_look.rows else ()),
        _table("Evaluations in training, mean of the rollouts", train),
        _table("Validation, mean of the rollouts", others),
        *([_table("Test, mean of the rollouts", test)] if test else []),
        _table("Rules in training, mean of the rollouts", rules, "none fired, or no recipe"),
        _table("Drops in training", drops, "none, or no recipe"),
        *([_table(f"{PROMPTS}, in training", prompts)] if prompts else []),
        _table("Seconds in training", durations),
        _table("Optimizer steps, mean of the wave's", metrics, "no training span in the store"),
    ]
    rollouts = sum(wave.rollouts for wave in run_waves.waves)
    policies = sorted({policy for wave in run_waves.waves for policy in wave.policies})
    facts = Facts(
        "Details",
        (
            ("waves", f"{len(run_waves.waves):,}"),
            ("rollouts", f"{rollouts:,}"),
            ("policies", tuple(Reference(Kind.POLICY, name) for name in policies) or "none"),
            *((("other spans", f"{results.other_spans:,}"),) if results else ()),
            ("judged by", recipe_label),
        ),
        is_folded=True,
    )
    error = (Facts("Error", (("error", state.error),)),) if state.error else ()
    alarms = (alarm_facts(run, run_waves.alarms),) if run_waves.alarms else ()
    tiles = Tiles("Figures", tuple(_tiles(run_waves, results, train, others, durations)))
    parts: Parts = (
        *error,
        facts,
        tiles,
        *alarms,
        *(chart for chart in charts if chart.series),
        *grids,
    )
    return Report(
        f"run {run}", state.progress, parts, _data(run, run_waves, results, durations, state)
    )


def _tiles(
    run_waves: RunWaves,
    results: RecipeResults | None,
    train: WaveValues,
    held_out: WaveValues,
    durations: WaveValues,
) -> Iterator[Tile]:
    """Yield the figures that a reader looks for first, as far as they are known."""
    if scores := _first_values(held_out):
        yield Tile("Held-out score", format_cell(scores[-1]), _change(scores))
    if rewards := _first_values(train):
        yield Tile("Reward in training", format_cell(rewards[-1]), _change(rewards))
    failed = run_waves.outcomes.filter(~pl.col("outcome").is_in(["ok", ""]))["rollouts"].sum()
    rollouts = sum(wave.rollouts for wave in run_waves.waves)
    yield Tile("Rollouts", f"{rollouts:,}", f"{failed:,} did not end ok")
    if results is not None:
        tokens, rows = (results.samples[name].sum() for name in ("tokens", "samples"))
        yield Tile("Trained tokens", f"{tokens:,}", f"in {rows:,} rows")
    if run_waves.waves:
        began, ended = (
            least(getattr(wave, name) for wave in run_waves.waves)
            for least, name in ((min, "began"), (max, "ended"))
        )
        spent = {name: sum(points.values()) for name, points in durations.items()}
        longest = max(spent, key=lambda name: spent[name], default="")
        seconds = (ended - began) / 1e9
        detail = f"{spent[longest]:,.0f} s in {longest}" if longest else ""
        value = f"{seconds / 60:,.1f} min" if seconds > 90 else f"{seconds:,.1f} s"
        yield Tile("Time", value, detail)


def _first_values(values: WaveValues) -> list[float]:
    """Return the values of `reward` by wave, else those of the first name."""
    name = "reward" if "reward" in values else next(iter(values), None)
    return [] if name is None else [values[name][wave] for wave in sorted(values[name])]


def _change(values: Sequence[float]) -> str:
    if len(values) < 2:
        return "one wave"
    return f"{values[-1] - values[0]:+.3f} since {format_cell(values[0])} in the first"


def phase_seconds(run_waves: RunWaves) -> WaveValues:
    """Return the seconds of each phase of each training wave, from the times of the spans."""
    spent: WaveValues = defaultdict(dict)
    updates = {update.wave: update for update in run_waves.updates}
    for wave in (wave for wave in run_waves.waves if wave.is_training):
        number = wave.wave
        spent["rollouts"][number] = (wave.ended - wave.began) / 1e9
        update = updates.get(number)
        if update is None:
            continue
        spent["settle + build"][number] = max(update.began - wave.ended, 0) / 1e9
        spent["train"][number] = (update.ended - update.began) / 1e9
        if update.published is not None:
            spent["publish"][number] = (update.published - update.ended) / 1e9
    return {name: spent[name] for name in PHASES if name in spent}


def _split_evaluations(
    evaluations: pl.DataFrame,
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return the evaluations of training waves, of tests, and of all other waves, each with the
    name that a reader sees.
    """
    runner = pl.col("source") == "runner"
    name = pl.when(runner).then("name").otherwise(pl.format("{} (by the {})", "name", "source"))
    labelled = evaluations.with_columns(name=name)
    train, test = (labelled.filter(mode=mode) for mode in ("train", "test"))
    mode = pl.when(pl.col("mode") == "val").then("name").otherwise(_with_mode())
    others = labelled.filter(~pl.col("mode").is_in(["train", "test"])).with_columns(name=mode)
    return train, test, others


def _bands(evaluations: pl.DataFrame) -> dict[str, list[Interval]]:
    """Return the interval of each mean of more than one rollout, by the name of the evaluation."""
    rows = evaluations.sort("name", "wave").select("name", "wave", "mean", "margin").iter_rows()
    means: dict[str, list[tuple[float, float, float | None]]] = defaultdict(list)
    for name, *mean in rows:
        means[name].append(tuple(mean))
    return {name: intervals(own) for name, own in means.items()}


def _with_mode() -> pl.Expr:
    return pl.format("{} ({})", "name", pl.col("mode").replace("", "no mode"))


def _reasons(results: RecipeResults) -> pl.DataFrame:
    return results.drops.with_columns(reason=pl.format("{}: {}", "stage", "reason"))


def _by_training_wave(
    frame: pl.DataFrame, name: str, value: str, run_waves: RunWaves
) -> WaveValues:
    """Return `value` by `name` and training wave, 0 where the frame has no row."""
    waves = sorted(wave.wave for wave in run_waves.waves if wave.is_training)
    values = _pivot(frame.filter(mode="train"), name, value)
    return {key: {wave: own.get(wave, 0) for wave in waves} for key, own in values.items()}


def _pivot(frame: pl.DataFrame, name: str, value: str) -> WaveValues:
    """Return `value` by `name` and wave, sorted by name."""
    values: WaveValues = defaultdict(dict)
    for key, wave, number in frame.sort(name, "wave").select(name, "wave", value).iter_rows():
        values[key][wave] = number
    return dict(values)


def _metric_names(updates: Iterable[WaveUpdate]) -> list[str]:
    return sorted({name for update in updates for step in update.steps for name in step})


def metric_means(updates: Sequence[WaveUpdate], name: str) -> dict[int, float]:
    """Return the mean of a metric over the steps of each wave."""
    values = {}
    for update in updates:
        numbers = [step[name] for step in update.steps if name in step]
        if numbers:
            values[update.wave] = sum(numbers) / len(numbers)
    return values


def _series(values: WaveValues) -> tuple[tuple[str, tuple[tuple[float, float], ...]], ...]:
    return tuple((name, tuple(sorted(points.items()))) for name, points in values.items())


def _table(title: str, values: WaveValues, empty: str = "none") -> Grid:
    waves = sorted({wave for points in values.values() for wave in points})
    rows = tuple((wave, *(points.get(wave) for points in values.values())) for wave in waves)
    return Grid(title, ("wave", *values), rows, empty, is_folded=True)


def _wave_table(run: str, run_waves: RunWaves, results: RecipeResults | None) -> Grid:
    """Return one row per wave: its policies, rollouts by outcome, samples and optimizer steps."""
    kinds = sorted(run_waves.outcomes["outcome"].unique().to_list())
    counts = {
        (mode, wave, outcome): count
        for mode, wave, outcome, count in run_waves.outcomes.iter_rows()
    }
    sample_rows = results.samples.iter_rows() if results else ()
    samples_by_wave = {row[:2]: row[2:] for row in sample_rows}
    reasons = _most_drops(results)
    updates = {update.wave: update for update in run_waves.updates}
    rows = []
    for wave in run_waves.waves:
        key = (wave.mode, wave.wave)
        update = updates.get(wave.wave) if wave.is_training else None
        outcomes: list[Cell] = [counts.get((*key, kind)) for kind in kinds]
        unknown = (None, None, None)
        *samples, trained = samples_by_wave.get(key, unknown) if wave.is_training else unknown
        became = None if trained is None else _became(trained, wave.rollouts, reasons.get(key))
        dataset = Reference(Kind.DATASET, update.dataset) if update else None
        steps = len(update.steps) if update else None
        policies = tuple(Reference(Kind.POLICY, policy) for policy in wave.policies)
        place = WaveReference(run, *key)
        rows.append((place, policies, wave.rollouts, *outcomes, became, *samples, steps, dataset))
    columns = ("wave", "policy", "rollouts", *kinds, "became", "samples", "tokens", "steps")
    return Grid("Waves", (*columns, "dataset"), tuple(rows))


def _became(trained: int, rollouts: int, drop: tuple[str, int] | None) -> Share:
    """Return the part of a wave's rollouts that was trained, and the most frequent drop if some
    were not.
    """
    words = f"{trained:,} of {rollouts:,} trained"
    if drop is not None and trained < rollouts:
        words = f"{words}; {drop[0].replace('_', ' ')} {drop[1]:,}"
    return Share(trained, rollouts, words)


def _most_drops(results: RecipeResults | None) -> dict[tuple[str, int], tuple[str, int]]:
    """Return the most frequent reason of a drop and its number, by mode and wave."""
    if results is None:
        return {}
    rollouts = results.drops.filter(pl.col("stage") != REWARDS)
    drops = rollouts.sort("count", "reason", descending=[False, True])
    columns = ("mode", "wave", "reason", "count")
    return {(mode, wave): (why, count) for mode, wave, why, count in drops.select(columns).rows()}


def _data(
    run: str,
    run_waves: RunWaves,
    results: RecipeResults | None,
    durations: WaveValues,
    state: RunState,
) -> dict[str, Any]:
    return {
        "run": run,
        "state": asdict(state),
        "waves": [asdict(wave) for wave in run_waves.waves],
        "outcomes": run_waves.outcomes.to_dicts(),
        "evaluations": run_waves.evaluations.to_dicts(),
        "rules": results.rules.to_dicts() if results else None,
        "drops": results.drops.to_dicts() if results else None,
        "prompts": results.prompts.to_dicts() if results else None,
        "other_spans": results.other_spans if results else None,
        "alarms": [asdict(alarm) for alarm in run_waves.alarms],
        "samples": results.samples.to_dicts() if results else None,
        "seconds": durations,
        "updates": [
            {"wave": update.wave, "dataset": update.dataset, "steps": update.steps}
            for update in run_waves.updates
        ],
    }
