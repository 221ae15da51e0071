"""The metrics of a trial in the store: the totals of each arm, over its units."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_transforms.deployment_file import Arm
from ltrain_transforms.trials.confidence import ArmTotals

FAILED_CALLS, SECONDS, FEEDBACK = "failed calls", "seconds of a call", "units with feedback"
OUTPUT_TOKENS = "output tokens of a call"
LATEST = 2**62
"""Unix nanoseconds after all traces."""
CALL_FIGURES = f"""
    toFloat64(
        StatusCode = 'Error' OR SpanAttributes['{attributes.EXPERIMENT_FALLBACK}'] = 'true'
    ) AS failed,
    Duration / 1e9 AS seconds,
    toFloat64OrNull(SpanAttributes['gen_ai.usage.output_tokens']) AS tokens
"""
"""The figures of a span of the gateway; `tokens` is null in a call without an answer. A call that
another version answered in place of the assigned one has failed."""
CALLS = f"""
calls AS (
    SELECT
        TraceId AS trace,
        SpanAttributes['{attributes.EXPERIMENT_ARM}'] AS arm,
        SpanAttributes['{attributes.EXPERIMENT_UNIT}'] AS unit,
        {CALL_FIGURES},
        toUnixTimestamp64Nano(Timestamp) AS at
    FROM otel.spans
    WHERE SpanAttributes['{attributes.EXPERIMENT}'] = {{experiment:String}}
)
"""
TOTALS = f"""
WITH {CALLS},
points AS (SELECT arrayJoin({{points:Array(Int64)}}) AS point),
seen AS (SELECT * FROM calls CROSS JOIN points WHERE at <= point),
traces AS (
    SELECT point, trace, arm, unit FROM seen GROUP BY point, trace, arm, unit
    HAVING max(at) <= point - {{window:Int64}}
),
judged AS (
    SELECT point, trace, name, argMax(value, judged) AS last
    FROM otel.evaluations CROSS JOIN points
    WHERE trace IN (SELECT trace FROM calls) AND value IS NOT NULL
        AND toUnixTimestamp64Nano(judged) <= point
    GROUP BY point, trace, name, source
),
per_unit AS (
    SELECT point, arm, unit, {{failed:String}} AS metric, count() AS n, sum(failed) AS s
    FROM seen GROUP BY point, arm, unit
    UNION ALL
    SELECT point, arm, unit, {{seconds:String}}, count(), sum(seconds)
    FROM seen GROUP BY point, arm, unit
    UNION ALL
    SELECT point, arm, unit, {{tokens:String}}, count(tokens), sum(tokens)
    FROM seen WHERE tokens IS NOT NULL GROUP BY point, arm, unit
    UNION ALL
    SELECT point, arm, unit, {{feedback:String}}, 1,
        toFloat64(max((point, trace) IN (SELECT point, trace FROM judged)))
    FROM traces GROUP BY point, arm, unit
    UNION ALL
    SELECT point, arm, unit, name, count(), sum(last)
    FROM traces INNER JOIN judged ON traces.point = judged.point AND traces.trace = judged.trace
    GROUP BY point, arm, unit, name
)
SELECT
    point, metric, arm, toFloat64(count()) AS units, toFloat64(sum(n)) AS values, sum(s) AS total,
    toFloat64(sum(n * n)) AS values_squared, sum(s * s) AS total_squared, sum(n * s) AS product
FROM per_unit GROUP BY point, metric, arm ORDER BY point, metric, arm
"""
EVIDENCE = f"""
WITH {CALLS},
judged AS (
    SELECT trace, argMax(value, judged) AS last FROM otel.evaluations
    WHERE trace IN (SELECT trace FROM calls) AND value IS NOT NULL AND name = {{goal:String}}
    GROUP BY trace
)
SELECT arm, trace, any(unit) AS unit, sum(failed) AS failed, sum(seconds) AS seconds,
    if(trace IN (SELECT trace FROM judged), any(last), NULL) AS value
FROM calls LEFT JOIN judged USING trace
GROUP BY arm, trace
ORDER BY arm, value ASC NULLS LAST, failed DESC, seconds DESC, trace
LIMIT {{limit:UInt32}} BY arm
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
    [metrics] = read_history(store, experiment, [LATEST], LATEST - settled)
    return metrics


def read_history(
    store: Store, experiment: str, points: Sequence[int], window: int
) -> list[list[Metric]]:
    """Return the metrics of an experiment at several times, as a reader saw them then.

    Args:
        points: Unix nanoseconds.
        window: nanoseconds from the last call of a trace on in which its feedback may arrive.
    """
    names = {
        "failed": FAILED_CALLS,
        "seconds": SECONDS,
        "tokens": OUTPUT_TOKENS,
        "feedback": FEEDBACK,
    }
    parameters = {"experiment": experiment, "points": list(points), "window": window, **names}
    found: dict[int, dict[str, dict[str, ArmTotals]]] = {point: {} for point in points}
    for row in store.query(TOTALS, parameters).iter_rows(named=True):
        point, metric, arm = (row.pop(key) for key in ("point", "metric", "arm"))
        found[point].setdefault(metric, {})[arm] = ArmTotals(**row)
    return [list(_metrics(found[point])) for point in points]


def read_evidence(store: Store, experiment: str, goal: str, limit: int) -> pl.DataFrame:
    """Return the traces of each arm with the lowest value of the goal.

    Returns:
        Columns `arm`, `trace`, `unit`, `failed` (calls), `seconds` (of all calls) and `value`,
        which is null without an evaluation of the goal.
    """
    return store.query(EVIDENCE, {"experiment": experiment, "goal": goal, "limit": limit})


def _metrics(found: dict[str, dict[str, ArmTotals]]) -> Iterator[Metric]:
    none: dict[str, Any] = dict.fromkeys(ArmTotals.__slots__, 0.0)
    first = (FAILED_CALLS, SECONDS, OUTPUT_TOKENS, FEEDBACK)
    for name in sorted(found, key=lambda each: (each not in first, each)):
        candidate, current = (found[name].get(arm, ArmTotals(**none)) for arm in Arm)
        yield Metric(name, candidate, current)
