"""The metrics of a trial in the store: the totals of each arm, over its units."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ltrain_collector.store import Store
from ltrain_transforms.deployment_file import Arm
from ltrain_transforms.trials.confidence import ArmTotals

FAILED_CALLS, SECONDS, FEEDBACK = "failed calls", "seconds of a call", "units with feedback"
LATEST = 2**62
"""Unix nanoseconds after all traces."""
TOTALS = """
WITH calls AS (
    SELECT
        TraceId AS trace,
        SpanAttributes['ltrain.experiment.arm'] AS arm,
        SpanAttributes['ltrain.experiment.unit'] AS unit,
        toFloat64(StatusCode = 'Error') AS failed,
        Duration / 1e9 AS seconds,
        Timestamp AS at
    FROM otel.spans
    WHERE SpanAttributes['ltrain.experiment.id'] = {experiment:String}
),
traces AS (
    SELECT trace, arm, unit FROM calls GROUP BY trace, arm, unit
    HAVING max(at) <= fromUnixTimestamp64Nano({settled:Int64})
),
judged AS (
    SELECT trace, name, argMax(value, judged) AS last
    FROM otel.evaluations
    WHERE trace IN (SELECT trace FROM traces) AND value IS NOT NULL
    GROUP BY trace, name, source
),
per_unit AS (
    SELECT arm, unit, {failed:String} AS metric, count() AS n, sum(failed) AS s
    FROM calls GROUP BY arm, unit
    UNION ALL
    SELECT arm, unit, {seconds:String}, count(), sum(seconds) FROM calls GROUP BY arm, unit
    UNION ALL
    SELECT arm, unit, {feedback:String}, 1, toFloat64(max(trace IN (SELECT trace FROM judged)))
    FROM traces GROUP BY arm, unit
    UNION ALL
    SELECT arm, unit, name, count(), sum(last)
    FROM traces INNER JOIN judged ON traces.trace = judged.trace GROUP BY arm, unit, name
)
SELECT
    metric, arm, toFloat64(count()) AS units, toFloat64(sum(n)) AS values, sum(s) AS total,
    toFloat64(sum(n * n)) AS values_squared, sum(s * s) AS total_squared, sum(n * s) AS product
FROM per_unit GROUP BY metric, arm ORDER BY metric, arm
"""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of a trial."""

    name: str
    candidate: ArmTotals
    current: ArmTotals


def read_metrics(store: Store, experiment: str, settled: int = LATEST) -> list[Metric]:
    """Return the metrics of an experiment: calls, feedback, and each evaluation by name.

    Of several evaluations of a trace with one name and source the last one counts. An arm without
    a value has totals of 0.

    Args:
        settled: Unix nanoseconds: feedback of traces whose last call began later may still arrive,
            so these traces are left out of the feedback and the evaluations.
    """
    names = {"failed": FAILED_CALLS, "seconds": SECONDS, "feedback": FEEDBACK}
    rows = store.query(TOTALS, {"experiment": experiment, "settled": settled, **names})
    found: dict[str, dict[str, ArmTotals]] = {}
    for row in rows.iter_rows(named=True):
        metric, arm = row.pop("metric"), row.pop("arm")
        found.setdefault(metric, {})[arm] = ArmTotals(**row)
    return list(_metrics(found))


def _metrics(found: dict[str, dict[str, ArmTotals]]) -> Iterator[Metric]:
    none: dict[str, Any] = dict.fromkeys(ArmTotals.__slots__, 0.0)
    first = (FAILED_CALLS, SECONDS, FEEDBACK)
    for name in sorted(found, key=lambda each: (each not in first, each)):
        candidate, current = (found[name].get(arm, ArmTotals(**none)) for arm in Arm)
        yield Metric(name, candidate, current)
