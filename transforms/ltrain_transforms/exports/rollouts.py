"""The rollouts of a dataset with what they are worth, and which of them a conversion takes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from ltrain_transforms.dataset import Batch, Dataset
from ltrain_transforms.exports.conversations import Conversation, conversations
from ltrain_transforms.exports.converted import Options
from ltrain_transforms.selection import concat_table, to_drops
from ltrain_transforms.tables import DROPS

STAGE = "exports"

NARROW = ("execution_id", "group_id", "task_id", "run_id", "domain", "mode")
"""What is kept of every execution."""

SPOKEN = ("execution_id", "call_id", "seq", "input", "output", "tools", "redacted")
"""What conversations are read from."""

REASONS = {
    "no_calls": "it made no call of the policy",
    "below": "its outcome is below --at-least",
    "not_best": "--best takes others of its group",
}


@dataclass(frozen=True, slots=True)
class Rollouts:
    """All of a dataset with `outcome_reward`, and those that are not taken as `DROPS`."""

    taken: pl.DataFrame
    drops: pl.DataFrame


@dataclass(frozen=True, slots=True)
class Talks:
    by_execution: dict[str, list[Conversation]]
    calls: pl.DataFrame
    """The rows of `calls` that they were looked for in."""
    idle: pl.DataFrame
    """`DROPS`: executions without a call."""
    silent: pl.DataFrame
    """`DROPS`: calls that are in no conversation."""

    def __iter__(self) -> Iterator[Conversation]:
        for of_one in self.by_execution.values():
            yield from of_one


def rollouts(dataset: Dataset) -> Rollouts:
    """Give the executions that count, with the sum of what was given to each as a whole."""
    out = dataset.drops.filter(pl.col("stage") == "executions")
    executions = pl.concat(map(_counted, dataset.batches)).sort("execution_id")
    taken = executions.join(out, left_on="execution_id", right_on="id", how="anti")
    return Rollouts(taken, out.with_columns(stage=pl.lit(STAGE)))


def _counted(batch: Batch) -> pl.DataFrame:
    rewards = batch.table("rewards", ("execution_id", "call_id", "value"))
    whole = rewards.filter(pl.col("call_id").is_null())
    worth = whole.group_by("execution_id").agg(outcome_reward=pl.col("value").sum())
    executions = batch.table("executions", NARROW)
    joined = executions.join(worth, "execution_id", "left", maintain_order="left")
    # one that counts without a word on the whole is of a recipe that asks for none
    return joined.with_columns(pl.col("outcome_reward").fill_null(0.0))


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
    drops = to_drops(STAGE, left_out, "execution_id", REASONS)
    kept = marked.filter(pl.col("reason").is_null()).drop("rank", "reason")
    return Rollouts(kept, concat_table(DROPS, found.drops, drops))


def talks(
    batch: Batch, found: Rollouts, policy: str | None, columns: Sequence[str] = SPOKEN
) -> Talks:
    """Give the conversations of a batch's rollouts that are taken.

    Args:
        columns: what is read of `calls`.
    """
    here = batch.table("executions", ("execution_id",))
    ids = here.join(found.taken, "execution_id", "semi")
    transitions = batch.table("transitions", ("execution_id", "call_id", "policy"))
    ours = transitions.join(ids, "execution_id", "semi")
    if policy is not None:
        ours = ours.filter(pl.col("policy") == policy)
    key = ["execution_id", "call_id"]
    calls = batch.table("calls", columns).join(ours.select(key), key, "semi")
    idle = ids.join(ours, "execution_id", "anti").with_columns(reason=pl.lit("no_calls"))
    made, silent = conversations(calls)
    return Talks(made, calls, to_drops(STAGE, idle, "execution_id", REASONS), silent)
