"""Several runs in the same charts: by wave, by rollout, by trained token, by hour."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path

from ltrain_collector.store import Store
from ltrain_instrument.quantity import quantity
from ltrain_transforms.reports.references import Kind, Reference
from ltrain_transforms.reports.report import Cell, Chart, Grid, Interval, Points, Report, intervals
from ltrain_transforms.reports.run import METRICS, metric_means, phase_seconds
from ltrain_transforms.reports.wave_rewards import read_results
from ltrain_transforms.reports.waves import RunWaves, Wave, query_waves
from ltrain_transforms.traces import sender_roles

NANOSECONDS = 3.6e12
"""Of an hour."""
COLUMNS = ("run", "waves", "rollouts", "trained tokens", "hours", "held-out score", "reward")


class Progress(StrEnum):
    """The axis on which runs are compared; values are those before a wave began."""

    WAVE = "wave"
    ROLLOUT = "rollout"
    """Rollouts of the training waves."""
    TOKEN = "token"
    """Trained tokens, of the datasets of the home."""
    HOUR = "hour"
    """Hours since the first span of the run."""


LABELS = {
    Progress.WAVE: "wave",
    Progress.ROLLOUT: "training rollouts before it",
    Progress.TOKEN: "trained tokens before it",
    Progress.HOUR: "hours since the run began",
}
Place = Callable[[Wave], float]
"""Returns the place of a wave on the axis."""


def run_overlay(
    store: Store,
    home: Path,
    runs: Sequence[str],
    by: Progress = Progress.WAVE,
    trust: Sequence[str] = sender_roles.TRUSTED,
) -> Report:
    """Return the report on several runs; one that the store does not have has no line."""
    found = {run: query_waves(store, run, trust) for run in runs}
    tokens = {run: _trained_tokens(home, run, waves) for run, waves in found.items()}
    places = {run: _place(waves, tokens[run], by) for run, waves in found.items()}
    charts = [
        _scores(found, places, "val", "Held-out score, 95 % interval"),
        _scores(found, places, "train", "Reward in training"),
        _updates(found, places, "Seconds of a wave", _seconds),
        *(_updates(found, places, f"Step: {name}", partial(_metric, name)) for name in METRICS),
    ]
    drawn = [
        Chart(title, LABELS[by], label, series, bands=bands, is_integer=by is not Progress.HOUR)
        for title, label, series, bands in charts
        if series
    ]
    rows = tuple(_row(run, waves, sum(tokens[run].values())) for run, waves in found.items())
    data = {"runs": list(runs), "by": str(by)}
    grid = Grid("Runs", COLUMNS, rows)
    return Report(f"{quantity(len(found), 'run')}, by {by}", "", (*drawn, grid), data)


def _trained_tokens(home: Path, run: str, waves: RunWaves) -> dict[int, int]:
    """Return the trained tokens of each training wave."""
    results = read_results(home, run, waves.waves)
    if results is None:
        return {}
    own = results.samples.filter(mode="train").select("wave", "tokens")
    return dict(own.iter_rows())


def _place(found: RunWaves, tokens: Mapping[int, int], by: Progress) -> Place:
    began = min((wave.began for wave in found.waves), default=0)
    training = [wave for wave in found.waves if wave.is_training]

    def place(wave: Wave) -> float:
        before = [each for each in training if each.began < wave.began]
        match by:
            case Progress.WAVE:
                return wave.wave
            case Progress.ROLLOUT:
                return sum(each.rollouts for each in before)
            case Progress.TOKEN:
                return sum(tokens.get(each.wave, 0) for each in before)
            case Progress.HOUR:
                return (wave.began - began) / NANOSECONDS

    return place


Lines = tuple[str, str, tuple[tuple[str, Points], ...], dict[str, list[Interval]]]
"""Title and label of a chart, its lines and their intervals, by run."""


def _scores(
    found: Mapping[str, RunWaves], places: Mapping[str, Place], mode: str, title: str
) -> Lines:
    """Return the mean reward of the waves of a mode, with intervals of held-out waves."""
    series, bands = list[tuple[str, Points]](), dict[str, list[Interval]]()
    for run, own in found.items():
        waves = {wave.wave: wave for wave in own.waves if wave.mode == mode}
        scores = own.evaluations.filter(mode=mode, name="reward", source="runner").sort("wave")
        rows = [
            (places[run](waves[wave]), mean, margin)
            for wave, mean, margin in scores.select("wave", "mean", "margin").iter_rows()
            if wave in waves
        ]
        if rows:
            series.append((run, tuple((x, mean) for x, mean, _ in rows)))
            if mode == "val":
                bands[run] = intervals(rows)
    return title, "mean of the rollouts", tuple(series), bands


def _updates(
    found: Mapping[str, RunWaves],
    places: Mapping[str, Place],
    title: str,
    value: Callable[[RunWaves], Mapping[int, float]],
) -> Lines:
    """Return a number of each training wave."""
    series = list[tuple[str, Points]]()
    for run, own in found.items():
        waves = {wave.wave: wave for wave in own.waves if wave.is_training}
        points = tuple(
            (places[run](waves[wave]), number)
            for wave, number in sorted(value(own).items())
            if wave in waves
        )
        if points:
            series.append((run, points))
    label = "seconds" if value is _seconds else title.removeprefix("Step: ")
    return title, label, tuple(series), {}


def _seconds(found: RunWaves) -> dict[int, float]:
    total: dict[int, float] = {}
    for phase in phase_seconds(found).values():
        for wave, seconds in phase.items():
            total[wave] = total.get(wave, 0.0) + seconds
    return total


def _metric(name: str, found: RunWaves) -> dict[int, float]:
    return metric_means(found.updates, name)


def _row(run: str, found: RunWaves, tokens: int) -> tuple[Cell, ...]:
    waves = found.waves
    began = min((wave.began for wave in waves), default=0)
    ended = max((wave.ended for wave in waves), default=0)
    last = {}
    for mode in ("val", "train"):
        own = found.evaluations.filter(mode=mode, name="reward", source="runner").sort("wave")
        last[mode] = own["mean"].to_list()[-1] if own.height else None
    return (
        *(Reference(Kind.RUN, run), len(waves), sum(wave.rollouts for wave in waves)),
        *(tokens or None, (ended - began) / NANOSECONDS, last["val"], last["train"]),
    )
