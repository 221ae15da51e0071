"""Alarms: waves in which calls are dropped mostly where the reward is low.

An agent can make a call untrainable by its own choice: it asks for guided decoding or several
answers, cuts its spans, or calls another path. An agent that does so in bad rollouts gets only its
good rollouts trained. For each wave of mode `train`, and for each reason that an agent can cause, a
one-sided Mann-Whitney test compares the rewards of the executions that lost calls with those of the
others (normal approximation, corrected for ties and for the number of reasons).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import erfc, sqrt

import polars as pl

from ltrain_transforms.alarms import drops_by_execution

AGENT_CAUSED = (
    *("redacted", "truncated", "multimodal", "no_tokens", "several_choices", "no_logprobs"),
    *("undelivered", "constrained", "filtered", "greedy", "no_version", "too_long", "no_calls"),
    *("other_model", "cut", "not_rendered", "not_reversible", "other_tokens"),
    *("not_json", "token_count", "unreadable", "untrusted_tokens", "without_key"),
    *("cyclic_parents", "duplicate_span", "too_large", "backwards", "unknown_dialect"),
)
"""Reasons of drops that an agent can cause by what it does, sends or writes."""

MIN_EXECUTIONS = 5
"""Fewest executions on each side for an alarm: with four on each side, no p is below 0.014."""

SIGNIFICANCE = 0.01
"""Largest p, times the number of reasons in the wave, for an alarm: by chance one wave in a
hundred has one."""

WAVE = ("run_id", "wave")

TABLES = ("executions", "calls", "rewards", "drops")
"""The tables that `find_alarms` reads."""


@dataclass(frozen=True, slots=True)
class Alarm:
    run: str
    wave: int
    reason: str
    mean_with_drops: float
    """Mean reward of the executions that lost calls."""
    mean_without_drops: float
    """Mean reward of the others."""
    p: float
    """Of the test, times the number of reasons."""

    def __str__(self) -> str:
        gives_up = ", or its client gives up on a slow model server"
        slow = gives_up if self.reason == "undelivered" else ""
        return (
            f"wave {self.wave}: executions with calls dropped as `{self.reason}` have low rewards "
            f"(mean {self.mean_with_drops:.2f}, others {self.mean_without_drops:.2f}, "
            f"p = {max(self.p, 1e-4):.4f}): the agent may choose which rollouts are trained"
            f"{slow}; see docs/samples.md"
        )


def find_alarms(
    executions: pl.LazyFrame, calls: pl.LazyFrame, rewards: pl.LazyFrame, drops: pl.LazyFrame
) -> list[Alarm]:
    """Return the alarms of a dataset's tables, in the order of run, wave and reason."""
    compared = _rewards_by_execution(executions, rewards, drops)
    lost = _caused_drops(calls, drops).join(compared.select("execution_id"), "execution_id", "semi")
    alarms: list[Alarm] = []
    for members in compared.partition_by(WAVE, maintain_order=True):
        run, wave = members.select(WAVE).row(0)
        of_wave = lost.join(members, "execution_id", "semi")
        reasons = sorted(of_wave["reason"].unique())
        for reason in reasons:
            ids = of_wave.filter(pl.col("reason") == reason)["execution_id"].unique()
            has_drops = pl.col("execution_id").is_in(ids.implode())
            with_drops = members.filter(has_drops)["reward"].to_list()
            others = members.filter(~has_drops)["reward"].to_list()
            p = mann_whitney_p(with_drops, others) * len(reasons)
            if min(len(with_drops), len(others)) >= MIN_EXECUTIONS and p < SIGNIFICANCE:
                means = sum(with_drops) / len(with_drops), sum(others) / len(others)
                alarms.append(Alarm(str(run), wave, reason, *means, p))
    return alarms


def mann_whitney_p(low: list[float], others: list[float]) -> float:
    """Return the one-sided p of the hypothesis that `low` is not below `others`; 1 if undefined.

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


def _rewards_by_execution(
    executions: pl.LazyFrame, rewards: pl.LazyFrame, drops: pl.LazyFrame
) -> pl.DataFrame:
    """Return `WAVE`, `execution_id` and `reward` of the executions that are compared."""
    left_out = drops.filter(pl.col("stage") == "executions").select(execution_id="id")
    whole = rewards.filter(pl.col("call_id").is_null(), pl.col("value").is_finite())
    outcomes = whole.group_by("execution_id").agg(reward=pl.col("value").sum())
    return (
        executions.filter(pl.col("mode") == "train", pl.col("wave").is_not_null())
        .join(left_out, "execution_id", "anti")
        .join(outcomes, "execution_id", "left")
        .select(*WAVE, "execution_id", pl.col("reward").fill_null(0.0))
        .sort(*WAVE, "execution_id", nulls_last=True)
        .collect()
    )


def _caused_drops(calls: pl.LazyFrame, drops: pl.LazyFrame) -> pl.DataFrame:
    """Return `execution_id` and `reason` of each drop that an agent can cause."""
    caused = drops.filter(pl.col("reason").is_in(AGENT_CAUSED), pl.col("stage") != "executions")
    found = drops_by_execution(calls, caused)
    return found.select("execution_id", "reason").unique().collect()


def alarms_by_wave(table: Callable[[str], pl.LazyFrame]) -> dict[str, list[str]]:
    """Return the alarm messages by `<run>/train/<wave>`, as the manifest stores them.

    Args:
        table: returns each of `TABLES` by its name.
    """
    waves: dict[str, list[str]] = {}
    for alarm in find_alarms(*map(table, TABLES)):
        waves.setdefault(f"{alarm.run}/train/{alarm.wave}", []).append(str(alarm))
    return waves


def alarm_messages(waves: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Yield each message of `alarms_by_wave` with its wave."""
    for wave, messages in waves.items():
        for message in messages:
            yield wave, message
