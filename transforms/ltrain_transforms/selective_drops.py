"""Alarms: waves in which calls are dropped mostly where the reward is low.

An agent can make a call untrainable by its own choice: it asks for guided decoding or several
answers, cuts its spans, calls another path. One that does so where it does badly has only its good
rollouts trained. Of each wave of mode `train`, and of each reason that an agent can bring about,
the rewards of the executions that lost calls are compared with those of the others: a one-sided
Mann-Whitney test (normal approximation, corrected for ties and for the number of reasons).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import erfc, sqrt

import polars as pl

CHOSEN = (
    *("redacted", "truncated", "multimodal", "no_tokens", "several_choices", "no_logprobs"),
    *("undelivered", "constrained", "greedy", "no_version", "too_long", "no_calls"),
    *("not_json", "token_count", "unreadable", "untrusted_tokens", "without_key"),
    *("cyclic_parents", "duplicate_span", "too_large", "backwards"),
)
"""Reasons of drops that an agent can bring about by what it does, sends or writes."""

FEWEST = 5
"""Executions on each side below which nothing is said: of four beside four no p is below 0.014."""

LIKELY = 0.01
"""The p, times the number of reasons in the wave, above which an alarm would be chance too often:
one wave in a hundred."""

WAVE = ("run_id", "wave")

TABLES = ("executions", "calls", "rewards", "drops")
"""What `alarms` reads."""


@dataclass(frozen=True, slots=True)
class Alarm:
    run: str
    wave: int
    reason: str
    lost: float
    """Mean reward of the executions that lost calls."""
    kept: float
    """Mean reward of the others."""
    p: float

    def __str__(self) -> str:
        return (
            f"wave {self.wave}: calls dropped as `{self.reason}` go with low reward "
            f"({self.lost:.2f} beside {self.kept:.2f}, p = {max(self.p, 1e-4):.4f}): the agent may "
            "be choosing what is trained; see docs/samples.md"
        )


def alarms(
    executions: pl.LazyFrame, calls: pl.LazyFrame, rewards: pl.LazyFrame, drops: pl.LazyFrame
) -> list[Alarm]:
    """Return the alarms of a dataset's tables, in the order of run, wave and reason."""
    judged = _judged(executions, rewards, drops)
    lost = _lost(calls, drops).join(judged.select("execution_id"), "execution_id", "semi")
    found: list[Alarm] = []
    for members in judged.partition_by(WAVE, maintain_order=True):
        run, wave = members.select(WAVE).row(0)
        own = lost.join(members, "execution_id", "semi")
        reasons = sorted(own["reason"].unique())
        for reason in reasons:
            chosen = own.filter(pl.col("reason") == reason)["execution_id"].unique()
            apart = pl.col("execution_id").is_in(chosen.implode())
            low = members.filter(apart)["reward"].to_list()
            others = members.filter(~apart)["reward"].to_list()
            p = lower(low, others) * len(reasons)
            if min(len(low), len(others)) >= FEWEST and p < LIKELY:
                means = sum(low) / len(low), sum(others) / len(others)
                found.append(Alarm(str(run), wave, reason, *means, p))
    return found


def lower(low: list[float], others: list[float]) -> float:
    """Return how likely chance puts `low` at least so far below `others`; 1 where it cannot tell.

    Mann and Whitney, 1947; the variance has the correction for ties.
    """
    n, m = len(low), len(others)
    ranks = pl.Series([*low, *others], dtype=pl.Float64).rank("average")
    ties = pl.Series([*low, *others], dtype=pl.Float64).value_counts()["count"].cast(pl.Float64)
    size = n + m
    if size < 2 or not n or not m:
        return 1.0
    tied = float((ties**3 - ties).sum()) / (size * (size - 1))
    variance = n * m / 12 * (size + 1 - tied)
    if variance <= 0:
        return 1.0
    above = float(ranks.head(n).sum()) - n * (n + 1) / 2 - n * m / 2 + 0.5
    return erfc(-above / sqrt(2 * variance)) / 2


def _judged(executions: pl.LazyFrame, rewards: pl.LazyFrame, drops: pl.LazyFrame) -> pl.DataFrame:
    """Return `WAVE`, `execution_id` and `reward` of the executions that are compared."""
    left_out = drops.filter(pl.col("stage") == "executions").select(execution_id="id")
    whole = rewards.filter(pl.col("call_id").is_null(), pl.col("value").is_finite())
    worth = whole.group_by("execution_id").agg(reward=pl.col("value").sum())
    return (
        executions.filter(pl.col("mode") == "train", pl.col("wave").is_not_null())
        .join(left_out, "execution_id", "anti")
        .join(worth, "execution_id", "left")
        .select(*WAVE, "execution_id", pl.col("reward").fill_null(0.0))
        .sort(*WAVE, "execution_id", nulls_last=True)
        .collect()
    )


def _lost(calls: pl.LazyFrame, drops: pl.LazyFrame) -> pl.DataFrame:
    """Return `execution_id` and `reason` of each drop that an agent can bring about."""
    chosen = drops.filter(pl.col("reason").is_in(CHOSEN), pl.col("stage") != "executions")
    parts = pl.col("id").str.splitn(":", 2).struct
    named = chosen.select("stage", "reason", "id", first=parts[0], rest=parts[1])
    of_calls = named.filter(pl.col("stage") != "spans")
    spans = calls.select("execution_id", first="source_spans").explode("first").drop_nulls()
    by_span = of_calls.join(spans, "first").select("execution_id", "reason")
    whole = of_calls.select(execution_id="id", reason="reason")
    # a broken span is in no call, so its drop names the execution
    broken = named.filter(stage="spans").select(execution_id="rest", reason="reason")
    return pl.concat([by_span, whole, broken]).drop_nulls().unique().collect()


def by_wave(table: Callable[[str], pl.LazyFrame]) -> dict[str, list[str]]:
    """Return the sentences by `<run>/train/<wave>`, as a manifest has them.

    Args:
        table: returns each of `TABLES` by its name.
    """
    waves: dict[str, list[str]] = {}
    for alarm in alarms(*map(table, TABLES)):
        waves.setdefault(f"{alarm.run}/train/{alarm.wave}", []).append(str(alarm))
    return waves


def sentences(waves: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Yield each wave with one of its sentences."""
    for place, own in waves.items():
        for sentence in own:
            yield place, sentence
