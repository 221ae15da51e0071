"""The drops of an export: `DROPS` of all batches, sorted by kind and execution id."""

from dataclasses import dataclass, field

import polars as pl

from ltrain_transforms.exports.rollouts import BatchConversations, ExportRollouts
from ltrain_transforms.source import concat_table
from ltrain_transforms.tables import DROPS


@dataclass(slots=True)
class ExportDrops:
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
