"""The result of `ltrain eval`: a table, the tasks that changed most, the next commands; or JSON."""

import json
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich.table import Table

from ltrain_instrument.identity import rollout_id
from ltrain_instrument.quantity import quantity
from ltrain_train.evaluation.comparison import MODE, Difference, Evaluation, VersionScores
from ltrain_train.rollout import describe_failures
from ltrain_transforms.scores import FEW_TASKS, Interval

LARGEST = 5
"""Tasks that the report names for each difference."""


def evaluation_title(evaluation: Evaluation) -> str:
    """Return what the table shows; a title of the table would be as narrow as its rows."""
    title = f"{evaluation.metric}: mean over {quantity(evaluation.tasks, 'task')}"
    if evaluation.samples > 1:
        title += f", {quantity(evaluation.samples, 'rollout')} each"
    return f"{title}, temperature {evaluation.temperature:g}"


def evaluation_table(evaluation: Evaluation) -> Table:
    """Return a table with a row for each version."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    columns = ("version", "tasks", "rollouts", "failed", "mean", "95 %")
    for column in columns + (("difference", "95 %") if evaluation.differences else ()):
        table.add_column(column, justify="left" if column == "version" else "right", no_wrap=True)
    for scores, difference in _rows(evaluation):
        compared = (_signed(difference.mean), _interval(difference.interval)) if difference else ()
        table.add_row(
            scores.version,
            str(len(scores.scores)),
            str(len(scores.summary.counted)),
            str(scores.failed),
            _number(scores.mean),
            _interval(scores.interval),
            *compared,
        )
    return table


def evaluation_lines(evaluation: Evaluation, logs: Path) -> Iterator[str]:
    """Yield the lines below the table.

    Args:
        evaluation: the evaluation.
        logs: folder of the logs of workers and commands.
    """
    first = evaluation.versions[0]
    for scores, difference in _rows(evaluation):
        if difference is not None:
            yield from _describe_difference(first, scores, difference)
    yield from _describe_gaps(evaluation)
    for scores in evaluation.versions:
        if failures := scores.summary.failures:
            yield f"{scores.version}: {describe_failures(failures, scores.planned, logs)}"
    yield f"Next: ltrain show {evaluation.run}"
    if rollout := _telling_rollout(evaluation):
        yield f"      ltrain show {rollout}"


def as_json(evaluation: Evaluation, faults: Sequence[str]) -> str:
    """Return the evaluation as JSON; `faults` say what is below `--fail-under`."""
    versions = [_version_json(*row) for row in _rows(evaluation)]
    fields = {
        "run": evaluation.run,
        "metric": evaluation.metric,
        "tasks": evaluation.tasks,
        "samples": evaluation.samples,
        "temperature": evaluation.temperature,
        "versions": versions,
        "passed": not faults,
        "faults": list(faults),
    }
    return json.dumps(fields, indent=1)


def _rows(evaluation: Evaluation) -> Iterator[tuple[VersionScores, Difference | None]]:
    return zip_longest(evaluation.versions, [None, *evaluation.differences])


def _version_json(scores: VersionScores, difference: Difference | None) -> dict[str, Any]:
    return {
        "version": scores.version,
        "wave": scores.wave,
        "rollouts": scores.planned,
        "outcomes": scores.summary.outcomes,
        "left_out": scores.left_out,
        "mean": scores.mean,
        "interval": _ends(scores.interval),
        "scores": dict(scores.scores),
        "difference": difference
        and {
            "tasks": len(difference.changes),
            "mean": difference.mean,
            "interval": _ends(difference.interval),
        },
    }


def _describe_difference(
    first: VersionScores, scores: VersionScores, difference: Difference
) -> Iterator[str]:
    changes = difference.changes.values()
    better, worse = sum(each > 0 for each in changes), sum(each < 0 for each in changes)
    pair = f"{scores.version} - {first.version}"
    yield f"{pair}: {better} better, {worse} worse, {len(changes) - better - worse} equal"
    largest = difference.largest(LARGEST)
    if largest:
        tasks = ", ".join(f"{task} {change:+.3f}" for task, change in largest)
        yield f"  changed most: {tasks}"
    if difference.interval is None:
        yield f"  no interval: {_why_none(list(changes), 'difference')}"


def _describe_gaps(evaluation: Evaluation) -> Iterator[str]:
    """Yield what limits the numbers: no interval, few tasks, rollouts without a score."""
    for scores in evaluation.versions:
        if scores.interval is None:
            why = _why_none(list(scores.scores.values()), "score")
            yield f"{scores.version}: no interval: {why}"
        if scores.left_out:
            yield (
                f"{scores.version}: {quantity(scores.left_out, 'rollout')} left out, ended by an "
                "outage. A task without a score is left out of the differences."
            )
    if 1 < evaluation.tasks < FEW_TASKS:
        yield (
            f"With {evaluation.tasks} tasks the intervals are too narrow; "
            f"{FEW_TASKS} or more make them reliable."
        )


def _why_none(scores: Sequence[float], name: str) -> str:
    if len(scores) < 2:
        return f"{quantity(len(scores), 'task')} with a {name}"
    return f"all {name}s are {scores[0]:.3f}"


def _telling_rollout(evaluation: Evaluation) -> str | None:
    """Return the id of a rollout of the task that changed most in the last version."""
    if not evaluation.differences or not (largest := evaluation.differences[-1].largest(1)):
        return None
    wave, (task, _) = evaluation.versions[-1].wave, largest[0]
    return rollout_id(evaluation.run, MODE, wave, task, 0)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.3f}"


def _interval(interval: Interval | None) -> str:
    return "-" if interval is None else str(interval)


def _ends(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]
