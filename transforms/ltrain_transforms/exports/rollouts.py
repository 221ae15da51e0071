"""The rollouts of a dataset with what they are worth, and which of them a conversion takes."""

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from ltrain_transforms.dataset import Dataset
from ltrain_transforms.exports.conversations import Conversation, conversations
from ltrain_transforms.exports.converted import Options
from ltrain_transforms.selection import dropped, gathered
from ltrain_transforms.tables import DROPS

STAGE = "exports"

REASONS = {
    "no_calls": "it made no call of the policy",
    "below": "its outcome is below --at-least",
    "not_best": "--best takes others of its group",
}


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Executions with `outcome_reward`, and those that are not taken as `DROPS`."""

    taken: pl.DataFrame
    drops: pl.DataFrame


@dataclass(frozen=True, slots=True)
class Talks:
    by_execution: dict[str, list[Conversation]]
    calls: pl.DataFrame
    """The rows of `calls` that they were looked for in."""
    drops: pl.DataFrame

    def __iter__(self) -> Iterator[Conversation]:
        for of_one in self.by_execution.values():
            yield from of_one


def rollouts(dataset: Dataset) -> Rollouts:
    """Give the executions that count, with the sum of what was given to each as a whole."""
    rewards = dataset.table("rewards").filter(pl.col("call_id").is_null())
    worth = rewards.group_by("execution_id").agg(outcome_reward=pl.col("value").sum())
    out = dataset.drops.filter(pl.col("stage") == "executions")
    executions = dataset.table("executions").sort("execution_id")
    taken = executions.join(out, left_on="execution_id", right_on="id", how="anti")
    drops = out.with_columns(stage=pl.lit(STAGE))
    joined = taken.join(worth, "execution_id", "left", maintain_order="left")
    # one that counts without a word on the whole is of a recipe that asks for none
    return Rollouts(joined.with_columns(pl.col("outcome_reward").fill_null(0.0)), drops)


def best(found: Rollouts, options: Options) -> Rollouts:
    """Keep the best: at least so much, and so many of each group; equals by their ids."""
    reward = pl.col("outcome_reward")
    group = pl.coalesce("group_id", "execution_id")
    order = [reward, "execution_id"]
    ranked = found.taken.sort(order, descending=[True, False]).with_columns(
        rank=pl.int_range(pl.len()).over(group)
    )
    below = reward < (float("-inf") if options.at_least is None else options.at_least)
    beyond = pl.col("rank") >= (ranked.height if options.best is None else options.best)
    reason = pl.when(below).then(pl.lit("below")).when(beyond).then(pl.lit("not_best"))
    marked = ranked.with_columns(reason=reason).sort("execution_id")
    left_out = marked.filter(pl.col("reason").is_not_null())
    drops = dropped(STAGE, left_out, "execution_id", REASONS)
    kept = marked.filter(pl.col("reason").is_null()).drop("rank", "reason")
    return Rollouts(kept, gathered(DROPS, found.drops, drops))


def talks(dataset: Dataset, found: Rollouts, policy: str | None) -> Talks:
    """Give the conversations of the rollouts that are taken, and what is in none as `DROPS`."""
    ids = found.taken.select("execution_id")
    ours = dataset.table("transitions").join(ids, "execution_id", "semi")
    if policy is not None:
        ours = ours.filter(pl.col("policy") == policy)
    key = ["execution_id", "call_id"]
    calls = dataset.table("calls").join(ours.select(key), key, "semi")
    idle = ids.join(ours, "execution_id", "anti").with_columns(reason=pl.lit("no_calls"))
    made, silent = conversations(calls)
    drops = gathered(DROPS, found.drops, dropped(STAGE, idle, "execution_id", REASONS), silent)
    return Talks(made, calls, drops)
