"""How the waves of a run went, asked of the store in a few narrow queries, without its messages."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_transforms import roles
from ltrain_transforms.roles import Role
from ltrain_transforms.source import placing

COUNTING = ("ok", "error", "timeout")
"""Outcomes that are the agent's own; an evaluation such a rollout lacks counts 0."""

WAVES = """
SELECT mode, wave, toInt64(count()) AS rollouts, min(first) AS began, max(last) AS ended,
    arraySort(groupUniqArrayArray(sampled)) AS policies
FROM (
    SELECT RolloutId, argMax(toString(Mode), ({placing}, Mode != '')) AS mode,
        toInt64(argMax(Wave, ({placing}, Wave))) AS wave,
        min(toUnixTimestamp64Nano(Timestamp)) AS first,
        max(toUnixTimestamp64Nano(Timestamp) + toInt64(Duration)) AS last,
        groupUniqArrayIf(
            concat(toString(PolicyName), '@', toString(PolicyVersion)), PolicyName != ''
        ) AS sampled
    FROM otel.spans WHERE RunId = {{run:String}} AND RolloutId != '' GROUP BY RolloutId
) GROUP BY mode, wave ORDER BY wave, mode
"""

CLOSED = f"""
    SELECT toString(Mode) AS mode, toInt64(Wave) AS wave, RolloutId AS rollout,
        argMax(SpanAttributes['{attributes.OUTCOME}'], Timestamp) AS outcome
    FROM otel.spans
    WHERE RunId = {{{{run:String}}}} AND SpanName = '{attributes.SPAN_ROLLOUT}' AND {{runner}}
    GROUP BY mode, wave, rollout
"""

OUTCOMES = """
SELECT mode, wave, outcome, toInt64(count()) AS rollouts FROM ({closed})
GROUP BY mode, wave, outcome ORDER BY wave, mode, outcome
"""

EVALUATIONS = """
SELECT mode, wave, name, source, sum(score) AS total, toInt64(count()) AS said FROM (
    SELECT toString(mode) AS mode, toInt64(wave) AS wave, rollout, name, source,
        argMax(value, (judged, span)) AS score
    FROM otel.evaluations
    WHERE run = {{run:String}} AND rollout != '' AND scope != 'call' AND isFinite(value)
    GROUP BY mode, wave, rollout, name, source
) WHERE (mode, wave, rollout) NOT IN (
    SELECT mode, wave, rollout FROM ({closed}) WHERE outcome NOT IN {{counting:Array(String)}}
) GROUP BY mode, wave, name, source ORDER BY wave, mode, name, source
"""

LEARNING = f"""
SELECT toString(SpanName) AS name, toUnixTimestamp64Nano(Timestamp) AS start,
    start + toInt64(Duration) AS end,
    concat(toString(PolicyName), '@', toString(PolicyVersion)) AS policy,
    SpanAttributes['{attributes.DATASET_ID}'] AS dataset,
    toJSONString(mapFilter((key, value) -> startsWith(key, '{attributes.TRAIN}'), SpanAttributes))
        AS metrics
FROM otel.spans
WHERE RunId IN ('', {{{{run:String}}}}) AND {{learner}}
    AND Timestamp >= fromUnixTimestamp64Nano({{{{since:Int64}}}})
    AND SpanName IN ('{attributes.SPAN_STEP}', '{attributes.SPAN_PUBLISH}')
ORDER BY start
"""


@dataclass(frozen=True, slots=True)
class Update:
    """What was learned from one wave."""

    wave: int
    dataset: str
    steps: list[dict[str, float]]
    """The metrics of each optimizer step."""
    began: int
    """Nanoseconds: the first step's start."""
    ended: int
    """The last step's end."""
    published: int | None
    """When every server had loaded what came out, or None where there is no word of it."""


@dataclass(frozen=True, slots=True)
class Waves:
    waves: pl.DataFrame
    """`mode`, `wave`, `rollouts`, `began`, `ended` (ns), `policies` that answered, `counting`."""
    outcomes: pl.DataFrame
    """`mode`, `wave`, `outcome`, `rollouts`."""
    evaluations: pl.DataFrame
    """`mode`, `wave`, `name`, `source`, `mean` over the rollouts that count."""
    updates: list[Update]


def waves(store: Store, run: str, trust: Sequence[str] = roles.TRUSTED) -> Waves:
    """Return every wave of `run`; without rows where there is no such run.

    Args:
        trust: the senders whose spans may be a runner's or a learner's.
    """
    closed = CLOSED.format(runner=roles.of(Role.RUNNER, trust))
    found = store.query(WAVES.format(placing=placing(trust)), {"run": run})
    outcomes = store.query(OUTCOMES.format(closed=closed), {"run": run})
    counted = (
        outcomes.filter(pl.col("outcome").is_in(COUNTING))
        .group_by("mode", "wave")
        .agg(counting=pl.col("rollouts").sum())
    )
    # nobody closes the rollouts of production traffic: all of them count
    full = found.join(counted, ["mode", "wave"], "left", maintain_order="left").with_columns(
        pl.coalesce("counting", "rollouts").alias("counting")
    )
    said = store.query(EVALUATIONS.format(closed=closed), {"run": run, "counting": list(COUNTING)})
    places = full.select("mode", "wave", "counting")
    means = said.join(places, ["mode", "wave"], maintain_order="left").select(
        *("mode", "wave", "name", "source"),
        mean=pl.col("total") / pl.max_horizontal("counting", "said"),
    )
    return Waves(full, outcomes, means, list(_updates(store, run, trust, full)))


def _updates(store: Store, run: str, trust: Sequence[str], waves: pl.DataFrame) -> list[Update]:
    """Find what was learned from each training wave.

    Training spans name no run: they are those of a policy and version that the wave sampled, of the
    first dataset after it began, before the run's next training wave.
    """
    training = waves.filter(pl.col("mode") == "train").sort("began").to_dicts()
    if not training:
        return []
    since = training[0]["began"]
    learning = LEARNING.format(learner=roles.of(Role.LEARNER, trust))
    spans = store.query(learning, {"run": run, "since": since}).to_dicts()
    later = [wave["began"] for wave in training[1:]] + [None]
    found = (_update(wave, end, spans) for wave, end in zip(training, later, strict=True))
    return [update for update in found if update is not None]


def _update(wave: dict[str, Any], before: int | None, spans: list[dict[str, Any]]) -> Update | None:
    steps = [
        span
        for span in spans
        if span["name"] == attributes.SPAN_STEP
        and span["policy"] in wave["policies"]
        and span["start"] >= wave["began"]
        and (before is None or span["start"] < before)
    ]
    steps = [span for span in steps if span["dataset"] == steps[0]["dataset"]]
    if not steps:
        return None
    dataset, ended = steps[0]["dataset"], max(span["end"] for span in steps)
    served = [
        span["end"]
        for span in spans
        if (span["name"], span["dataset"]) == (attributes.SPAN_PUBLISH, dataset)
        and span["end"] >= ended
    ]
    metrics = [_numbers(span["metrics"]) for span in steps]
    return Update(
        wave["wave"], dataset, metrics, steps[0]["start"], ended, served[0] if served else None
    )


def _numbers(text: str) -> dict[str, float]:
    numbers = {}
    for name, value in json.loads(text).items():
        try:
            numbers[name.removeprefix(attributes.TRAIN)] = float(value)
        except ValueError:  # not a number, so nothing to plot
            continue
    return numbers
