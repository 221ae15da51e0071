"""The alarms of runs, as the runs recorded them in spans: the one source of every report."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_transforms.reports.references import GroupReference, Kind, Reference, WaveReference
from ltrain_transforms.reports.report import Fact, Facts
from ltrain_transforms.tables import typed_rows
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
    WHERE RunId = {{{{run:String}}}} AND RolloutId = ''
        AND SpanName = '{attributes.SPAN_ALARM}' AND {{learner}}
) GROUP BY wave, policy, name, subject ORDER BY wave, policy, name, subject
"""
"""A wave whose update was repeated after a kill may have recorded an alarm twice."""

COUNTS = f"""
SELECT toString(RunId) AS run, toInt64(uniqExact(Wave)) AS waves FROM otel.spans
WHERE RunId IN {{{{runs:Array(String)}}}} AND RolloutId = ''
    AND SpanName = '{attributes.SPAN_ALARM}' AND {{learner}}
GROUP BY run
"""


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm of a wave of a run."""

    wave: int
    policy: str
    name: str
    subject: str
    message: str
    since: int | None
    rollouts: list[str]
    tasks: list[str]


def query_alarms(store: Store, run: str, trust: Sequence[str]) -> list[Alarm]:
    """Return the alarms of a run in the order of waves.

    Args:
        trust: the senders whose spans count as spans of a learner.
    """
    learner = sender_roles.role_condition(Role.LEARNER, trust)
    alarms = store.query(ALARMS.format(learner=learner), {"run": run})
    lists = pl.col("rollouts", "tasks").map_elements(_texts, pl.List(pl.String))
    since = pl.col("since").str.to_integer(strict=False)
    return typed_rows(Alarm, alarms.with_columns(lists, since))


def count_alarms(store: Store, runs: Sequence[str], trust: Sequence[str]) -> dict[str, int]:
    """Return the number of waves with an alarm, of each run that has some."""
    learner = sender_roles.role_condition(Role.LEARNER, trust)
    counts = store.query(COUNTS.format(learner=learner), {"runs": list(runs)})
    return dict(counts.iter_rows())


def alarm_facts(run: str, alarms: Sequence[Alarm]) -> Facts:
    """Return each alarm once: its latest sentence, the waves that have it, and what to read."""
    same: dict[tuple[str, str, str], list[Alarm]] = {}
    for alarm in alarms:
        same.setdefault((alarm.policy, alarm.name, alarm.subject), []).append(alarm)
    several = len({policy for policy, _, _ in same}) > 1
    rows: list[tuple[str, Fact]] = []
    for (policy, name, _), found in same.items():
        rows.append((f"{name} ({policy})" if several else name, found[-1].message))
        rows.append(("in", tuple(WaveReference(run, "train", each.wave) for each in found)))
        if evidence := _evidence(run, found[-1]):
            rows.append(("to read", evidence))
    return Facts("Alarms", tuple(rows))


def _evidence(run: str, alarm: Alarm) -> tuple[Reference | GroupReference, ...]:
    rollouts = (Reference(Kind.ROLLOUT, rollout) for rollout in alarm.rollouts)
    groups = (GroupReference(run, "train", alarm.wave, task) for task in alarm.tasks)
    return (*rollouts, *groups)


def _texts(value: str) -> list[str]:
    """Return the texts of a JSON list; none if it is another value, as of another writer."""
    try:
        found = json.loads(value or "[]")
    except ValueError:
        return []
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []
