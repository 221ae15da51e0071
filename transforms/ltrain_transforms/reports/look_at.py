"""The rollouts of a run that are worth a look, each with its reason."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_instrument.quantity import quantity
from ltrain_transforms.reports.alarms import Alarm
from ltrain_transforms.reports.references import Kind, Reference
from ltrain_transforms.reports.report import Cell, Grid, format_cell
from ltrain_transforms.reports.wave import SAMPLED
from ltrain_transforms.reports.waves import Wave, last_scores
from ltrain_transforms.traces import parse_json, to_text

SCORES = f"""
WITH judged AS (
    {last_scores(SAMPLED, "rollout, name")}
)
SELECT rollout, name, score, task, failed, span FROM judged JOIN (
    SELECT RolloutId AS rollout, max(TaskId) AS task,
        toInt64(countIf(StatusCode = 'Error' AND SpanName NOT LIKE 'ltrain.%')) AS failed,
        anyIf(toString(SpanName), StatusCode = 'Error' AND SpanName NOT LIKE 'ltrain.%') AS span
    FROM otel.spans WHERE RunId = {{run:String}} AND RolloutId IN (SELECT rollout FROM judged)
    GROUP BY rollout
) AS spans USING rollout
ORDER BY task, rollout, name
"""
TASKS = f"""
SELECT RolloutId AS rollout, anyIf(
    SpanAttributes['{attributes.TASK_INPUT}'], SpanAttributes['{attributes.TASK_INPUT}'] != ''
) AS task
FROM otel.spans WHERE RunId = {{run:String}} AND RolloutId IN {{rollouts:Array(String)}}
GROUP BY rollout
"""
COLUMNS = ("rollout", "why", "reward")
WORDS = 90
"""Characters of a task that name a rollout."""
MIN_CONFLICT = 0.5
"""The smallest difference of two evaluations of a rollout, of 0 to 1, that is a conflict."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A rollout, and the reason to read it."""

    rollout: str
    task: str
    why: str
    reward: float | None


def look_at(
    store: Store, run: str, waves: Sequence[Wave], alarms: Sequence[Alarm], name: str = "reward"
) -> Grid:
    """Return at most six rollouts that are worth a look.

    Args:
        alarms: the alarms of the run, in the order of waves.
        name: the evaluation by which rollouts are compared.
    """
    found = dict[str, Finding]()
    for finding in _findings(store, run, waves, alarms, name):
        found.setdefault(finding.rollout, finding)
    tasks = _tasks(store, run, list(found))
    rows: list[tuple[Cell, ...]] = [
        (
            Reference(Kind.ROLLOUT, one.rollout, tasks.get(one.rollout) or one.task or one.rollout),
            one.why,
            one.reward,
        )
        for one in found.values()
    ]
    return Grid("Look at", COLUMNS, tuple(rows))


def _findings(
    store: Store, run: str, waves: Sequence[Wave], alarms: Sequence[Alarm], name: str
) -> Iterator[Finding]:
    ordered = sorted(waves, key=lambda wave: wave.began)
    held_out = [wave for wave in ordered if wave.mode == "val"][-2:]
    if len(held_out) == 2:
        before, after = (_scores(store, run, wave) for wave in held_out)
        yield from _changes(before, after, name, held_out[0].policies)
    trained = [wave for wave in ordered if wave.is_training][-1:]
    for scores in (_scores(store, run, wave) for wave in trained):
        yield from _best_of_its_group(scores, name)
        yield from _most_failures(scores, name)
        yield from _conflict(scores)
    for alarm in alarms[-1:]:
        for rollout in alarm.rollouts[:1]:
            yield Finding(rollout, "", f"alarm {alarm.name} of wave {alarm.wave}", None)


def _scores(store: Store, run: str, wave: Wave) -> pl.DataFrame:
    """Return `rollout`, `name`, `score`, `task`, `failed` and `span` of a wave."""
    return store.query(SCORES, {"run": run, "mode": wave.mode, "wave": wave.wave})


def _changes(
    before: pl.DataFrame, after: pl.DataFrame, name: str, policies: Sequence[str]
) -> Iterator[Finding]:
    """Yield a rollout of the task with the largest drop, and of the task with the largest gain."""
    means = before.filter(name=name).group_by("task").agg(before=pl.col("score").mean())
    change = (
        after.filter(name=name)
        .join(means, "task")
        .with_columns(change=pl.col("score") - pl.col("before"))
    )
    since = f"since {' and '.join(policies) or 'the version before'}"
    for way, size in (("drop", -pl.col("change")), ("gain", pl.col("change"))):
        for row in _largest(change.with_columns(size=size), "size"):
            if row["size"] > 0:
                yield _finding(row, f"largest {way} {since}: {format_cell(row['before'])} before")


def _best_of_its_group(scores: pl.DataFrame, name: str) -> Iterator[Finding]:
    """Yield the rollout that is furthest above the mean of its group."""
    own = scores.filter(name=name)
    means = own.group_by("task").agg(mean=pl.col("score").mean(), size=pl.len())
    lead = own.join(means, "task").with_columns(lead=pl.col("score") - pl.col("mean"))
    for row in _largest(lead, "lead"):
        if row["lead"] > 0:
            mean = format_cell(row["mean"])
            yield _finding(row, f"furthest above its group of {row['size']}, whose mean is {mean}")


def _most_failures(scores: pl.DataFrame, name: str) -> Iterator[Finding]:
    """Yield the rollout with the most failed spans."""
    own = scores.filter(name=name) if name in scores["name"] else scores.unique("rollout")
    for row in _largest(own, "failed"):
        if row["failed"]:
            yield _finding(row, f"{quantity(row['failed'], 'failed span')}, such as {row['span']}")


def _conflict(scores: pl.DataFrame) -> Iterator[Finding]:
    """Yield the rollout on which two evaluations of 0 to 1 differ most."""
    ranges = (
        scores.group_by("name")
        .agg(low=pl.col("score").min(), high=pl.col("score").max())
        .filter(pl.col("low") >= 0, pl.col("high") <= 1)
    )
    shares = scores.join(ranges, "name", "semi").sort("score", "name")
    ends = shares.group_by("rollout", "task", maintain_order=True).agg(
        low=pl.col("score").first(),
        low_name=pl.col("name").first(),
        high=pl.col("score").last(),
        high_name=pl.col("name").last(),
    )
    widest = ends.with_columns(width=pl.col("high") - pl.col("low"))
    for row in _largest(widest, "width"):
        if row["width"] >= MIN_CONFLICT:
            low, high = (f"{row[f'{end}_name']} {format_cell(row[end])}" for end in ("low", "high"))
            why = f"its evaluations differ: {high}, {low}"
            yield Finding(row["rollout"], row["task"], why, None)


def _largest(rows: pl.DataFrame, column: str) -> Iterator[dict[str, Any]]:
    """Yield the row with the largest value, the first rollout of several; none of no rows."""
    first = rows.sort(column, "rollout", descending=[True, False]).head(1)
    yield from first.iter_rows(named=True)


def _finding(row: Mapping[str, Any], why: str) -> Finding:
    return Finding(row["rollout"], row["task"], why, row["score"])


def _tasks(store: Store, run: str, rollouts: list[str]) -> dict[str, str]:
    """Return the recorded inputs of rollouts, in few words."""
    if not rollouts:
        return {}
    found = store.query(TASKS, {"run": run, "rollouts": rollouts})
    return {rollout: _words(task) for rollout, task in found.iter_rows() if task}


def _words(task: str) -> str:
    text = " ".join(to_text(parse_json(task)).split())
    return text if len(text) <= WORDS else f"{text[: WORDS - 1]}…"
