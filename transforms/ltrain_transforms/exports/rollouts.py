"""The rollouts of a dataset with their outcomes, and the selection of those to export."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from ltrain_transforms.datasets import Dataset, DatasetBatch
from ltrain_transforms.exports.conversations import Conversation, group_calls
from ltrain_transforms.exports.conversion import ExportOptions
from ltrain_transforms.source import concat_table, to_drops
from ltrain_transforms.tables import DROPS
from ltrain_transforms.traces import parse_json

STAGE = "exports"

TASK_COLUMNS = ("task_input", "task_fields", "altered")
"""The columns of `executions` that `read_task` reads."""

NARROW = (
    *("execution_id", "group_id", "task_id", "task_key", "run_id", "domain", "mode"),
    *TASK_COLUMNS,
)
"""The columns of `executions` that exports read."""

GROUP = pl.coalesce("group_id", "task_key", "execution_id")
"""The executions that exports compare: those of a wave's task, else those of a task.

An update by reinforcement compares the groups of waves only: a question of traffic is asked for
ever, so its group would never be complete, and be outdated after the first update.
"""

CONVERSATION_COLUMNS = (
    "execution_id",
    "call_id",
    "seq",
    "input",
    "output",
    "tools",
    "redacted",
    "choice",
)
"""The columns of `calls` that conversations need."""

REASONS = {
    "no_calls": "it made no call of the policy",
    "below": "its outcome is below --min",
    "not_best": "--best takes others of its group",
}


@dataclass(frozen=True, slots=True)
class ExportRollouts:
    selected: pl.DataFrame
    """Executions with their `outcome_reward`."""
    drops: pl.DataFrame
    """`DROPS`: the executions that are not selected."""


@dataclass(frozen=True, slots=True)
class BatchConversations:
    """The conversations of one batch."""

    by_execution: dict[str, list[Conversation]]
    calls: pl.DataFrame
    """The rows of `calls` of the conversations."""
    without_calls: pl.DataFrame
    """`DROPS`: executions without a call."""
    unusable: pl.DataFrame
    """`DROPS`: calls that are in no conversation."""

    def __iter__(self) -> Iterator[Conversation]:
        for conversations in self.by_execution.values():
            yield from conversations


@dataclass(slots=True)
class ExportDrops:
    """The drops of an export: `DROPS` of all batches, sorted by kind and execution id."""

    rollouts: ExportRollouts
    kinds: dict[str, list[pl.DataFrame]] = field(default_factory=dict)

    def add_batch(self, batch: BatchConversations) -> None:
        """Add the executions and calls of a batch that are in no conversation."""
        self.add_executions("without_calls", batch.without_calls)
        self.add_calls("unusable", batch.unusable, batch)

    def add_executions(self, kind: str, drops: pl.DataFrame) -> None:
        """Add executions of a batch."""
        self.kinds.setdefault(kind, []).append(drops.with_columns(execution_id="id"))

    def add_calls(self, kind: str, drops: pl.DataFrame, batch: BatchConversations) -> None:
        """Add calls of a batch."""
        owners = batch.calls.select("execution_id", id="call_id").unique("id")
        owned = drops.join(owners, "id", "left", maintain_order="left")
        self.kinds.setdefault(kind, []).append(owned)

    def drops(self) -> pl.DataFrame:
        """Return all drops; the rollouts that were not selected come first."""
        every = (pl.concat(frames) for frames in self.kinds.values())
        ordered = (frame.sort("execution_id", maintain_order=True) for frame in every)
        return concat_table(
            DROPS, self.rollouts.drops, *(frame.drop("execution_id") for frame in ordered)
        )


def read_rollouts(dataset: Dataset) -> ExportRollouts:
    """Read the executions that the build did not drop, each with its outcome reward."""
    out = dataset.drops.filter(pl.col("stage") == "executions")
    executions = pl.concat(map(_with_outcomes, dataset.batches)).sort("execution_id")
    selected = executions.join(out, left_on="execution_id", right_on="id", how="anti")
    return ExportRollouts(selected, out.with_columns(stage=pl.lit(STAGE)))


def _with_outcomes(batch: DatasetBatch) -> pl.DataFrame:
    rewards = batch.table("rewards", ("execution_id", "call_id", "value"))
    outcome_rows = rewards.filter(pl.col("call_id").is_null())
    outcomes = outcome_rows.group_by("execution_id").agg(outcome_reward=pl.col("value").sum())
    executions = batch.table("executions", NARROW)
    joined = executions.join(outcomes, "execution_id", "left", maintain_order="left")
    # an execution that the build kept without an outcome is of a recipe that requires none
    return joined.with_columns(pl.col("outcome_reward").fill_null(0.0))


def read_task(execution: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the input and the further fields of a task as its runner read them from the file.

    Return None if they were not recorded, or not completely.
    """
    if execution["task_input"] is None or execution["task_fields"] is None or execution["altered"]:
        return None
    fields = parse_json(execution["task_fields"])
    further = fields if isinstance(fields, dict) else {}
    return {**further, "input": parse_json(execution["task_input"])}


def select_best(rollouts: ExportRollouts, options: ExportOptions) -> ExportRollouts:
    """Select rollouts with at least this outcome, then the top N of each group; ties by id."""
    reward = pl.col("outcome_reward")
    order = [reward, "execution_id"]
    ranked = rollouts.selected.sort(order, descending=[True, False]).with_columns(
        rank=pl.int_range(pl.len()).over(GROUP)
    )
    below = reward < (float("-inf") if options.min is None else options.min)
    beyond = pl.col("rank") >= (ranked.height if options.best is None else options.best)
    reason = pl.when(below).then(pl.lit("below")).when(beyond).then(pl.lit("not_best"))
    marked = ranked.with_columns(reason=reason).sort("execution_id")
    left_out = marked.filter(pl.col("reason").is_not_null())
    drops = to_drops(STAGE, left_out, "execution_id", REASONS)
    selected = marked.filter(pl.col("reason").is_null()).drop("rank", "reason")
    return ExportRollouts(selected, concat_table(DROPS, rollouts.drops, drops))


def read_conversations(
    batch: DatasetBatch,
    rollouts: ExportRollouts,
    policy: str | None,
    columns: Sequence[str] = CONVERSATION_COLUMNS,
    recorded: pl.Expr | None = None,
) -> BatchConversations:
    """Read the conversations of the selected rollouts in a batch.

    Args:
        policy: only the calls of this policy; None is every policy.
        columns: the columns of `calls` to read.
        recorded: which calls are in no conversation, because their tokens are recorded.
    """
    in_batch = batch.table("executions", ("execution_id",))
    ids = in_batch.join(rollouts.selected, "execution_id", "semi")
    all_transitions = batch.table("transitions", ("execution_id", "call_id", "policy"))
    transitions = all_transitions.join(ids, "execution_id", "semi")
    if policy is not None:
        transitions = transitions.filter(pl.col("policy") == policy)
    key = ["execution_id", "call_id"]
    calls = batch.table("calls", columns).join(transitions.select(key), key, "semi")
    idle = ids.join(transitions, "execution_id", "anti")
    without_calls = to_drops(
        STAGE, idle.with_columns(reason=pl.lit("no_calls")), "execution_id", REASONS
    )
    spoken = calls if recorded is None else calls.filter(~recorded)
    by_execution, unusable = group_calls(spoken)
    return BatchConversations(by_execution, calls, without_calls, unusable)
