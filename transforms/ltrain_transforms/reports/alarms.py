"""The alarms of runs, as the runs recorded them in spans: the one source of every report."""

import json
from collections.abc import Sequence
from typing import Any

import polars as pl

from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_transforms.reports.references import GroupReference, Kind, Reference, WaveReference
from ltrain_transforms.reports.report import Grid
from ltrain_transforms.traces import Role, sender_roles

_FIELDS = ", ".join(
    f"SpanAttributes['{name}'] AS {name.rpartition('.')[2]}"
    for name in (
        *(attributes.ALARM_NAME, attributes.ALARM_SUBJECT, attributes.ALARM_MESSAGE),
        *(attributes.ALARM_SINCE, attributes.ALARM_ROLLOUTS, attributes.ALARM_TASKS),
    )
)
ALARMS = f"""
SELECT wave, policy, name, subject, argMax(message, time) AS message, argMax(since, time) AS since,
    argMax(rollouts, time) AS rollouts, argMax(tasks, time) AS tasks
FROM (
    SELECT toInt64(Wave) AS wave, toString(PolicyName) AS policy, Timestamp AS time, {_FIELDS}
    FROM otel.spans
    WHERE RunId = {{{{run:String}}}} AND SpanName = '{attributes.SPAN_ALARM}' AND {{learner}}
) GROUP BY wave, policy, name, subject ORDER BY wave, policy, name, subject
"""
"""A wave whose update was repeated after a kill may have recorded an alarm twice."""

COUNTS = f"""
SELECT toString(RunId) AS run, toInt64(uniqExact(Wave)) AS waves FROM otel.spans
WHERE RunId IN {{{{runs:Array(String)}}}} AND SpanName = '{attributes.SPAN_ALARM}' AND {{learner}}
GROUP BY run
"""


def query_alarms(store: Store, run: str, trust: Sequence[str]) -> pl.DataFrame:
    """Return the alarms of a run: `wave`, `policy`, `name`, `subject`, `message`, `since`,
    and `rollouts` and `tasks` as JSON, in the order of waves.

    Args:
        trust: the senders whose spans count as spans of a learner.
    """
    learner = sender_roles.role_condition(Role.LEARNER, trust)
    return store.query(ALARMS.format(learner=learner), {"run": run})


def count_alarms(store: Store, runs: Sequence[str], trust: Sequence[str]) -> dict[str, int]:
    """Return the number of waves with an alarm, of each run that has some."""
    learner = sender_roles.role_condition(Role.LEARNER, trust)
    counts = store.query(COUNTS.format(learner=learner), {"runs": list(runs)})
    return dict(counts.iter_rows())


def alarm_records(alarms: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the alarms of `query_alarms` with numbers and lists, for `--json`."""
    return [
        row
        | {
            "since": int(row["since"]) if row["since"].isdigit() else None,
            "rollouts": _texts(row["rollouts"]),
            "tasks": _texts(row["tasks"]),
        }
        for row in alarms.to_dicts()
    ]


def alarm_grid(run: str, alarms: pl.DataFrame) -> Grid:
    """Return a table of alarms: each with its wave, its sentence, and what to read."""
    rows = tuple(
        (
            WaveReference(run, "train", alarm["wave"]),
            alarm["name"],
            alarm["message"],
            _evidence(run, alarm) or None,
        )
        for alarm in alarm_records(alarms)
    )
    return Grid("Alarms", ("wave", "alarm", "observation", "to read"), rows)


def _evidence(run: str, alarm: dict[str, Any]) -> tuple[Reference | GroupReference, ...]:
    rollouts = (Reference(Kind.ROLLOUT, rollout) for rollout in alarm["rollouts"])
    groups = (GroupReference(run, "train", alarm["wave"], task) for task in alarm["tasks"])
    return (*rollouts, *groups)


def _texts(value: str) -> list[str]:
    """Return the texts of a JSON list; none if it is another value, as of another writer."""
    try:
        found = json.loads(value or "[]")
    except ValueError:
        return []
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []


