"""The waves of a run, from a few queries of the store that do not read messages."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import polars as pl

from ltrain_collector.admin import counted_scores
from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_transforms.calls import LATE
from ltrain_transforms.reports.alarms import Alarm, query_alarms
from ltrain_transforms.reports.report import NORMAL_95
from ltrain_transforms.source import runner_condition
from ltrain_transforms.tables import typed_rows
from ltrain_transforms.traces import Role, sender_roles

COUNTING = ("ok", "error", "timeout")
"""Outcomes that the agent caused; if such a rollout lacks an evaluation, it counts as 0."""

OUTCOME = f"""
    argMaxIf(
        toString(Outcome), Timestamp,
        SpanName = '{attributes.SPAN_ROLLOUT}' AND {{runner}}
    )
"""
"""How a rollout ended, of its spans; '' if no runner has closed it."""
POLICIES = """
    arraySort(groupUniqArrayIf(
        concat(toString(PolicyName), '@', toString(PolicyVersion)), PolicyName != ''
    ))
"""
"""The policy versions that answered a rollout, of its spans."""

MODE, WAVE = (
    "argMax(toString(Mode), ({placing}, Mode != ''))",
    "toInt64(argMax(Wave, ({placing}, Wave)))",
)
"""Mode and wave of a rollout, of its spans; those that its runner names come first."""

SAMPLE = 3
"""Rollouts of a wave whose spans show whether its attempts name prompts."""
WAVES = f"""
SELECT mode, wave, toInt64(count()) AS rollouts, min(first) AS began, max(last) AS ended,
    arraySort(groupUniqArrayArray(sampled)) AS policies,
    groupArraySorted({SAMPLE})(RolloutId) AS some
FROM (
    SELECT RolloutId, {MODE} AS mode, {WAVE} AS wave,
        min(toUnixTimestamp64Nano(Timestamp)) AS first,
        maxIf(
            toUnixTimestamp64Nano(Timestamp) + toInt64(Duration),
            SpanName NOT IN {LATE}
        ) AS last,
        {POLICIES} AS sampled
    FROM otel.spans WHERE RunId = {{{{run:String}}}} AND RolloutId != '' GROUP BY RolloutId
) GROUP BY mode, wave ORDER BY wave, mode
"""
"""`some` are ids of rollouts of the wave."""

PROMPTS = f"""
SELECT mode, wave, arraySort(groupUniqArrayArray(prompts)) AS prompts
FROM (
    WITH mapFilter((key, _) -> startsWith(key, '{attributes.PROMPT}'), SpanAttributes) AS named
    SELECT RolloutId, {MODE} AS mode, {WAVE} AS wave,
        groupUniqArrayArrayIf(
            arrayMap(
                (key, version) -> concat(key, '@', version),
                arrayMap(key -> substring(key, {len(attributes.PROMPT) + 1}), mapKeys(named)),
                mapValues(named)
            ),
            SpanName = '{attributes.SPAN_DISPATCH}'
        ) AS prompts
    FROM otel.spans WHERE RunId = {{{{run:String}}}} AND {{of}} GROUP BY RolloutId
) GROUP BY mode, wave HAVING notEmpty(prompts)
"""
"""The prompts that attempts may read, which their dispatch spans name."""

CLOSED = f"""
    SELECT toString(RunId) AS run, toString(Mode) AS mode, toInt64(Wave) AS wave,
        RolloutId AS rollout,
        argMax(toString(Outcome), (toUInt32OrZero(Attempt), Timestamp)) AS outcome
    FROM otel.spans
    WHERE {{of}} AND RunId IN {{{{runs:Array(String)}}}}
        AND SpanName = '{attributes.SPAN_ROLLOUT}' AND {{runner}}
    GROUP BY run, mode, wave, rollout
"""
NOT_COUNTED = f"""
    RolloutId IN (
        SELECT RolloutId FROM otel.spans
        WHERE RunId IN {{{{runs:Array(String)}}}} AND SpanName = '{attributes.SPAN_ROLLOUT}'
            AND Outcome NOT IN {{{{counting:Array(String)}}}}
    )
"""
"""The few rollouts that a span closes with another outcome: only these are aggregated."""

OUTCOMES = """
SELECT run, mode, wave, outcome, toInt64(count()) AS rollouts FROM ({closed})
GROUP BY run, mode, wave, outcome ORDER BY run, wave, mode, outcome
"""

OF_RUNS = counted_scores(
    "rollout != '' AND (run = '' OR run IN {{runs:Array(String)}})", "rollout, name"
)
EVALUATIONS = f"""
WITH unplaced AS (
    SELECT RolloutId AS rollout,
        (toString(max(RunId)), {MODE}, {WAVE}) AS found
    FROM otel.spans
    WHERE RunId IN {{{{runs:Array(String)}}}} AND RolloutId IN (
        SELECT rollout FROM otel.evaluations WHERE run = '' AND rollout != ''
    )
    GROUP BY rollout
),
placed AS (
    SELECT rollout, name, source, score, if(place.1 != '', place, found) AS place
    FROM ({OF_RUNS}) AS scores LEFT JOIN unplaced USING rollout
)
SELECT place.1 AS run, place.2 AS mode, place.3 AS wave, name, source, sum(score) AS total,
    sum(score * score) AS squares, toInt64(count()) AS rollouts
FROM placed
WHERE run != '' AND (run, mode, wave, rollout) NOT IN (
    SELECT run, mode, wave, rollout FROM ({{closed}})
    WHERE outcome NOT IN {{{{counting:Array(String)}}}}
) GROUP BY run, mode, wave, name, source ORDER BY run, wave, mode, name, source
"""
"""The place of a rollout that only feedback without a run judges is that of its spans."""

LEARNING = f"""
SELECT toString(SpanName) AS name, toUnixTimestamp64Nano(Timestamp) AS start,
    start + toInt64(Duration) AS end,
    concat(toString(PolicyName), '@', toString(PolicyVersion)) AS policy,
    SpanAttributes['{attributes.DATASET_ID}'] AS dataset,
    toJSONString(mapFilter((key, value) -> startsWith(key, '{attributes.TRAIN}'), SpanAttributes))
        AS metrics
FROM otel.spans
WHERE RunId IN ('', {{{{run:String}}}}) AND RolloutId = '' AND {{learner}}
    AND Timestamp >= fromUnixTimestamp64Nano({{{{since:Int64}}}})
    AND SpanName IN ('{attributes.SPAN_STEP}', '{attributes.SPAN_PUBLISH}')
ORDER BY start
"""


@dataclass(frozen=True, slots=True)
class Wave:
    """A wave of a run in the store."""

    mode: str
    wave: int
    rollouts: int
    began: int
    """The start of its first span, in nanoseconds."""
    ended: int
    """The end of its last span, in nanoseconds."""
    policies: list[str]
    """The versions that answered or were read as prompts."""
    counting: int
    """Number of rollouts that count."""

    @property
    def is_training(self) -> bool:
        return self.mode == "train"


@dataclass(frozen=True, slots=True)
class WaveUpdate:
    """The optimizer steps on one wave."""

    wave: int
    dataset: str
    steps: list[dict[str, float]]
    """The metrics of each optimizer step, by name."""
    began: int
    """The start of the first step, in nanoseconds."""
    ended: int
    """The end of the last step, in nanoseconds."""
    published: int | None
    """When every server had loaded the new version, in nanoseconds; None if no span records it."""


@dataclass(frozen=True, slots=True)
class RunWaves:
    waves: list[Wave]
    outcomes: pl.DataFrame
    """`mode`, `wave`, `outcome`, `rollouts`."""
    evaluations: pl.DataFrame
    """`mode`, `wave`, `name`, `source`, `mean` and `margin` over the rollouts that count."""
    updates: list[WaveUpdate]
    alarms: list[Alarm]


def query_waves(store: Store, run: str, trust: Sequence[str] = sender_roles.TRUSTED) -> RunWaves:
    """Query every wave of `run`; there are none if there is no such run.

    Args:
        trust: the senders whose spans count as spans of a runner or a learner.
    """
    # each query takes one thread
    with ThreadPoolExecutor() as pool:
        sums = pool.submit(query_sums, store, [run], trust)
        closed = pool.submit(query_outcomes, store, [run], trust)
        raised = pool.submit(query_alarms, store, run, trust)
        placing = runner_condition(trust)
        found = store.query(WAVES.format(placing=placing), {"run": run})
        rollouts = _with_prompts(store, run, placing, found)
        outcomes = closed.result().drop("run")
        # rollouts of production traffic have no closing span: all of them count
        waves = rollouts.join(
            counting_rollouts(outcomes), ["mode", "wave"], "left", maintain_order="left"
        ).with_columns(pl.coalesce("counting", "rollouts").alias("counting"))
        rows = typed_rows(Wave, waves)
        updates = _updates(store, run, trust, rows)
        counts = waves.select("mode", "wave", "counting").with_columns(run=pl.lit(run))
        means = mean_scores(sums.result(), counts).drop("run")
        return RunWaves(rows, outcomes, means, updates, raised.result())


def _with_prompts(store: Store, run: str, placing: str, waves: pl.DataFrame) -> pl.DataFrame:
    """Return the waves with the prompts of their attempts among their policies.

    All attempts of a wave name prompts or none does, so a few of each wave are read first: the
    attributes of all take ten times as long as the waves.
    """
    parameters = {"run": run, "some": waves["some"].explode().to_list()}
    for of in ("RolloutId IN {some:Array(String)}", "RolloutId != ''"):
        sql = PROMPTS.format(placing=placing, of=of)
        prompts = store.query(sql, parameters)
        if prompts.is_empty():
            return waves.drop("some")
    joined = waves.join(prompts, ["mode", "wave"], "left", maintain_order="left")
    named = pl.concat_list("policies", pl.col("prompts").fill_null([]))
    return joined.with_columns(policies=named.list.unique().list.sort()).drop("some", "prompts")


def query_outcomes(store: Store, runs: Sequence[str], trust: Sequence[str]) -> pl.DataFrame:
    """Return `run`, `mode`, `wave`, `outcome` and the number of `rollouts` with it."""
    return store.query(OUTCOMES.format(closed=_closed(trust)), {"runs": list(runs)})


def query_sums(store: Store, runs: Sequence[str], trust: Sequence[str]) -> pl.DataFrame:
    """Return `run`, `mode`, `wave`, `name`, `source`, and of each evaluation the `total`, the sum
    of its `squares` and the number of `rollouts`.
    """
    closed = _closed(trust, NOT_COUNTED.format())
    sql = EVALUATIONS.format(closed=closed, placing=runner_condition(trust))
    return store.query(sql, {"runs": list(runs), "counting": list(COUNTING)})


def mean_scores(sums: pl.DataFrame, counting: pl.DataFrame) -> pl.DataFrame:
    """Return `run`, `mode`, `wave`, `name`, `source`, and the `mean` of each evaluation with the
    `margin` of its 95 % interval: 1.96 standard errors; null for less than two rollouts.

    Args:
        sums: the result of `query_sums`.
        counting: `run`, `mode`, `wave` and the number of rollouts that count, as `counting`: those
            without the evaluation count as 0.
    """
    keys = ["run", "mode", "wave"]
    rollouts = pl.max_horizontal("counting", "rollouts")
    mean = pl.col("total") / rollouts
    variance = (pl.col("squares") / rollouts - mean**2).clip(0) / (rollouts - 1)
    return sums.join(counting, keys, "left", maintain_order="left").select(
        *(*keys, "name", "source"),
        mean=mean,
        margin=pl.when(rollouts > 1).then(NORMAL_95 * variance.sqrt()),
    )


def last_scores(rollouts: str, by: str = "rollout", where: str = "true") -> str:
    """Return a query of `by` and its `score` that counts; the runner's comes before any other.

    Args:
        rollouts: query of the ids of the rollouts.
        by: `rollout`, and `name` if there are several names.
        where: SQL condition on the run and the name in `otel.evaluations`.
    """
    scores = counted_scores(f"rollout IN ({rollouts}) AND {where}", by)
    return f"""
    SELECT {by}, argMax(score, (source = 'runner', moment, source)) AS score
    FROM ({scores}) GROUP BY {by}"""


def _closed(trust: Sequence[str], of: str = "true") -> str:
    return CLOSED.format(runner=sender_roles.role_condition(Role.RUNNER, trust), of=of)


def counting_rollouts(outcomes: pl.DataFrame) -> pl.DataFrame:
    """Return the number of rollouts that count of each wave, as `counting`."""
    keys = [name for name in ("run", "mode", "wave") if name in outcomes.columns]
    counting = outcomes.filter(pl.col("outcome").is_in(COUNTING))
    return counting.group_by(keys).agg(counting=pl.col("rollouts").sum())


def _updates(
    store: Store, run: str, trust: Sequence[str], waves: Sequence[Wave]
) -> list[WaveUpdate]:
    """Return the update of each training wave.

    Training spans name no run. The spans of a wave are those with a policy version that the wave
    sampled, of the first dataset after the wave began, before the next training wave of the run.
    """
    training = sorted((wave for wave in waves if wave.is_training), key=lambda wave: wave.began)
    if not training:
        return []
    learning = LEARNING.format(learner=sender_roles.role_condition(Role.LEARNER, trust))
    spans = store.query(learning, {"run": run, "since": training[0].began})
    ends = [wave.began for wave in training[1:]] + [None]
    updates = (_update(wave, end, spans) for wave, end in zip(training, ends, strict=True))
    return [update for update in updates if update is not None]


def _update(wave: Wave, before: int | None, spans: pl.DataFrame) -> WaveUpdate | None:
    start, end = pl.col("start"), pl.col("end")
    steps = spans.filter(
        pl.col("name") == attributes.SPAN_STEP,
        pl.col("policy").is_in(wave.policies),
        start >= wave.began,
        pl.lit(True) if before is None else start < before,
    )
    if steps.is_empty():
        return None
    dataset = str(steps["dataset"][0])
    steps = steps.filter(dataset=dataset)
    ended = int(steps.select(end.max()).item())
    published = spans.filter(end >= ended, name=attributes.SPAN_PUBLISH, dataset=dataset)["end"]
    metrics = [_numbers(text) for text in steps["metrics"]]
    return WaveUpdate(
        wave.wave, dataset, metrics, steps["start"][0], ended, next(iter(published), None)
    )


def _numbers(text: str) -> dict[str, float]:
    numbers = {}
    for name, value in json.loads(text).items():
        try:
            numbers[name.removeprefix(attributes.TRAIN)] = float(value)
        except ValueError:  # not a number
            continue
    return numbers
