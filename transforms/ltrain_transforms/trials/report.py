"""The report on the versions of a policy that users meet: stages, both sides of a trial, bounds."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any

from ltrain_collector.store import Store
from ltrain_instrument.errors import LtrainError
from ltrain_transforms.deployment_file import (
    Arm,
    Deployment,
    Freeze,
    find_freeze,
    read_deployments,
)
from ltrain_transforms.errors import NothingToShow
from ltrain_transforms.recipe import Deploy
from ltrain_transforms.reports import (
    Cell,
    Chart,
    Fact,
    Facts,
    Grid,
    Kind,
    Points,
    Reference,
    Report,
    current_version,
)
from ltrain_transforms.trials.confidence import compare
from ltrain_transforms.trials.stored import FEEDBACK, Metric, read_evidence, read_history
from ltrain_transforms.trials.verdict import Bounds, Decision, Verdict, judge

LOOKS = 24
"""Times at which the charts have a point."""
CHARTS = 6
"""Metrics that have a chart, at most."""
EVIDENCE = 5
"""Executions of each side."""
SPANS = ((3 * 86_400, "days", 86_400), (3 * 3600, "hours", 3600), (180, "minutes", 60))
"""From how many seconds on the axis of a trial has which unit, and the seconds of the unit."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Two versions that answer calls beside each other."""

    first: Deployment
    """The stage with which it began."""
    end: Deployment | None = None
    """The stage that ended it; None: it goes on."""

    def times(self) -> list[int]:
        """Return the times of the charts, and the present: nanoseconds since the epoch."""
        now = time.time()
        last = now if self.end is None else self.end.at
        step = max(last - self.first.began, 0.0) / LOOKS
        seconds = [self.first.began + step * number for number in range(1, LOOKS + 1)]
        return [int(each * 1e9) for each in (*seconds, now)]


@dataclass(frozen=True, slots=True)
class History:
    """The metrics of a trial at several times, the last of which is the present."""

    trial: Trial
    times: Sequence[int]
    metrics: Sequence[Sequence[Metric]]
    options: Deploy

    @property
    def bounds(self) -> Bounds:
        """The rule of the trial."""
        return Bounds.of(self.options, self.trial.first.stage)

    @property
    def names(self) -> list[str]:
        """The metrics: the goal, its guards, and others."""
        bounds = self.bounds
        found = [each.name for each in self.metrics[-1]]
        if bounds.shadow:  # nobody rates what nobody sees
            found.remove(FEEDBACK)
        return sorted(found, key=lambda name: (name != bounds.goal, name not in bounds.guards))

    def rows(self) -> list[dict[str, Any]]:
        """Return both sides by metric; a number that is not known yet is None."""
        return [
            _describe_metric(each, self.options.alpha)
            for name in self.names
            for each in self.metrics[-1]
            if each.name == name
        ]

    def charts(self) -> Iterator[Chart]:
        """Yield the units of both sides, and the difference of each metric, over time."""
        label, seconds = self._axis()
        elapsed = [(at / 1e9 - self.trial.first.began) / seconds for at in self.times[:-1]]
        looks = list(zip(elapsed, self.metrics[:-1], strict=True))
        units = tuple(
            (str(arm), tuple((at, _units(metrics, arm)) for at, metrics in looks)) for arm in Arm
        )
        yield Chart("Units of both sides", label, "units", units)
        for name in self.names[:CHARTS]:
            rows = [
                (at, _describe_metric(metric, self.options.alpha))
                for at, metrics in looks
                for metric in metrics
                if metric.name == name
            ]
            series = tuple((key, _points(rows, key)) for key in ("difference", "lower", "upper"))
            yield Chart(f"{name}: the candidate minus the current version", label, name, series)

    def with_other_bounds(self) -> Iterator[tuple[Cell, ...]]:
        """Yield the first decision by each rule: rule, decision, when, units, reason."""
        label, seconds = self._axis()
        for name, bounds in _variants(self.bounds):
            verdict, at, metrics = self._first_decision(bounds)
            decided = verdict.decision is not Decision.GO_ON
            after = (at / 1e9 - self.trial.first.began) / seconds if decided else None
            units = int(_units(metrics, Arm.CANDIDATE)) if decided else None
            when = None if after is None else f"{after:.3g} {label.split()[0]}"
            yield name, verdict.decision, when, units, verdict.reason

    def _first_decision(self, bounds: Bounds) -> tuple[Verdict, int, Sequence[Metric]]:
        looks = list(zip(self.times, self.metrics, strict=True))
        if self.trial.end is not None:
            looks.pop()
        verdicts = [(judge(metrics, bounds), at, metrics) for at, metrics in looks]
        ends = (each for each in verdicts if each[0].decision is not Decision.GO_ON)
        return next(ends, verdicts[-1])

    def _axis(self) -> tuple[str, float]:
        """Return the label of the time since the beginning, and the seconds of its unit."""
        length = self.times[-2] / 1e9 - self.trial.first.began
        unit, seconds = next(
            ((name, size) for least, name, size in SPANS if length >= least), ("seconds", 1)
        )
        return f"{unit} since the trial began", float(seconds)


def deployment_report(
    home: Path, name: str, options: Deploy, store: Store | LtrainError, experiment: str = ""
) -> Report:
    """Return the report on the stages of the versions of a policy, and on one of its trials.

    Args:
        options: the rule by which the trial is judged.
        store: the spans of its calls, or why they cannot be read.
        experiment: the id of the trial; "": the last one.

    Raises:
        NothingToShow: when the policy has no such trial.
        BadPolicyFile: when a file of the policy is damaged.
    """
    folder = home / "policies" / name
    stages = read_deployments(folder)
    trials = _list_trials(stages)
    trial = _find_trial(trials, experiment)
    current, frozen = current_version(folder), find_freeze(folder)
    facts = list(_facts(name, current, frozen, stages))
    data: dict[str, Any] = {
        "current": current,
        "frozen": None if frozen is None else frozen.model_dump(),
        "stages": [each.model_dump() for each in stages],
        "trials": [each.first.experiment for each in trials],
    }
    parts: list[Facts | Grid | Chart] = []
    if trial is not None:
        facts.append(("trial", f"of v{trial.first.version}, experiment {trial.first.experiment}"))
        try:
            parts, found = _compare(trial, options, _require(store))
            data |= found
        except LtrainError as error:
            facts.append(("not compared", f"the store cannot be read: {error}"))
            data |= {"metrics": None, "fault": str(error)}
    rows = tuple(_stage_row(name, each) for each in reversed(stages))
    parts.append(Grid("Stages, newest first", STAGES, rows, "no version was a candidate yet"))
    return Report(f"Deployment of policy {name}", "", (Facts("State", tuple(facts)), *parts), data)


def _list_trials(stages: Sequence[Deployment]) -> list[Trial]:
    """Return the trials of a policy, the oldest first."""
    trials: list[Trial] = []
    for each in stages:
        goes_on = bool(trials) and trials[-1].end is None
        same = goes_on and trials[-1].first.experiment == each.experiment
        if goes_on and not (same and each.serves):
            trials[-1] = replace(trials[-1], end=each)
        if each.serves and not same:
            trials.append(Trial(each))
    return trials


STAGES = ("time (UTC)", "version", "stage", "share", "by", "reason")


def _stage_row(name: str, stage: Deployment) -> tuple[Cell, ...]:
    version = Reference(Kind.POLICY, f"{name}@{stage.version}", f"v{stage.version}")
    share = f"{stage.share:.4g}" if stage.serves else None
    return _time(stage.at), version, stage.stage, share, stage.by, stage.reason


def _time(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"


def _find_trial(trials: Sequence[Trial], experiment: str) -> Trial | None:
    if not experiment:
        return trials[-1] if trials else None
    for each in trials:
        if each.first.experiment == experiment:
            return each
    raise NothingToShow(f"The policy has no trial {experiment}.")


def _require(store: Store | LtrainError) -> Store:
    if isinstance(store, LtrainError):
        raise store
    return store


def _facts(
    name: str, current: int | None, frozen: Freeze | None, stages: Sequence[Deployment]
) -> Iterator[tuple[str, Fact]]:
    if current is not None:
        yield "current", Reference(Kind.POLICY, f"{name}@{current}", f"v{current}")
    if frozen is not None:
        reason = f": {frozen.reason}" if frozen.reason else ""
        yield "frozen", f"by {frozen.by} since {_time(frozen.at)} UTC{reason}"
    if not stages or not stages[-1].is_open:
        yield "on trial", "no version"
    else:
        last = stages[-1]
        yield "on trial", f"v{last.version} is {last.describe()}, since {_time(last.at)} UTC"


def _compare(
    trial: Trial, options: Deploy, store: Store
) -> tuple[list[Facts | Grid | Chart], dict[str, Any]]:
    """Return the parts of a trial, and the same for `--json`."""
    first, times = trial.first, trial.times()
    window = int(options.reward_window * 1e9)
    metrics = read_history(store, first.experiment, times, window)
    if not metrics[-1]:
        return [Facts("Trial", (("calls", "none has arrived in the store yet"),))], {"metrics": []}
    history = History(trial, times, metrics, options)
    rows, bounds = history.rows(), tuple(history.with_other_bounds())
    evidence = read_evidence(store, first.experiment, options.goal, EVIDENCE).rows(named=True)
    level = f"{1 - 2 * options.alpha:.0%} at any time"
    columns = ("metric", f"v{first.version}", "current", "difference", level, "units")
    parts: list[Facts | Grid | Chart] = [
        *history.charts(),
        Grid("Both sides", columns, tuple(map(_metric_row, rows))),
        Grid("The decision by [deploy], and with other bounds", BOUNDS, bounds),
        Grid(
            f"Executions with the least {options.goal}",
            ("side", "trace", options.goal, "failed calls", "seconds of its calls"),
            tuple(map(_evidence_row, evidence)),
        ),
    ]
    named = [dict(zip(BOUNDS, map(_plain, row), strict=True)) for row in bounds]
    return parts, {"metrics": rows, "bounds": named, "evidence": evidence}


BOUNDS = ("bounds", "decision", "after", "units of the candidate", "reason")


def _plain(cell: Cell) -> Any:
    return cell if isinstance(cell, int | float | None) else str(cell)


def _evidence_row(row: dict[str, Any]) -> tuple[Cell, ...]:
    trace = Reference(Kind.TRACE, row["trace"])
    return row["arm"], trace, row["value"], int(row["failed"]), row["seconds"]


def _metric_row(row: dict[str, Any]) -> tuple[Cell, ...]:
    bounds = "not known yet"
    if row["lower"] is not None and row["upper"] is not None:
        bounds = f"[{row['lower']:+.4g}, {row['upper']:+.4g}]"
    means = (row[side] for side in ("candidate", "current", "difference"))
    return row["metric"], *means, bounds, " and ".join(map(str, row["units"]))


def _describe_metric(metric: Metric, alpha: float) -> dict[str, Any]:
    """Return a metric as JSON; a number that is not known yet is None."""
    found = compare(metric.candidate, metric.current, alpha)
    figures = {
        "candidate": metric.candidate.mean,
        "current": metric.current.mean,
        "difference": found.mean,
        "lower": found.lower,
        "upper": found.upper,
    }
    finite = {key: float(x) if isfinite(x) else None for key, x in figures.items()}
    units = [int(side.units) for side in (metric.candidate, metric.current)]
    return {"metric": metric.name, "units": units, **finite}


def _points(rows: Sequence[tuple[float, dict[str, Any]]], key: str) -> Points:
    return tuple((at, float("nan") if row[key] is None else row[key]) for at, row in rows)


def _units(metrics: Sequence[Metric], arm: Arm) -> float:
    sides = (each.candidate if arm is Arm.CANDIDATE else each.current for each in metrics)
    return float(max((side.units for side in sides), default=0))


def _variants(own: Bounds) -> Iterator[tuple[str, Bounds]]:
    """Yield the rule, and rules that differ from it in one setting."""
    yield "[deploy]", own
    for factor in (0.2, 2.0):
        alpha = min(own.alpha * factor, 0.49)
        yield f"alpha = {alpha:g}", replace(own, alpha=alpha)
    if own.min_gain:
        yield "min_gain = 0", replace(own, min_gain=0.0)
    if own.max_loss:
        yield "max_loss = 0", replace(own, max_loss=0.0)
    if own.guards and not own.shadow:
        yield "no guards", replace(own, guards={})
