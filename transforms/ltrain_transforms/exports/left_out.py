"""What is in no row of a conversion: `DROPS` of all batches, by kind and the executions' ids."""

from dataclasses import dataclass, field

import polars as pl

from ltrain_transforms.exports.rollouts import Rollouts, Talks
from ltrain_transforms.selection import concat_table
from ltrain_transforms.tables import DROPS


@dataclass(slots=True)
class LeftOut:
    found: Rollouts
    kinds: dict[str, list[pl.DataFrame]] = field(default_factory=dict)

    def talks(self, spoken: Talks) -> None:
        """Add what is in no conversation."""
        self.executions("idle", spoken.idle)
        self.calls("silent", spoken.silent, spoken)

    def executions(self, kind: str, drops: pl.DataFrame) -> None:
        """Add executions of a batch."""
        self.kinds.setdefault(kind, []).append(drops.with_columns(execution_id="id"))

    def calls(self, kind: str, drops: pl.DataFrame, spoken: Talks) -> None:
        """Add calls of a batch."""
        owners = spoken.calls.select("execution_id", id="call_id").unique("id")
        owned = drops.join(owners, "id", "left", maintain_order="left")
        self.kinds.setdefault(kind, []).append(owned)

    def drops(self) -> pl.DataFrame:
        """Give all, those that are not taken first."""
        every = (pl.concat(frames) for frames in self.kinds.values())
        ordered = (one.sort("execution_id", maintain_order=True) for one in every)
        return concat_table(DROPS, self.found.drops, *(one.drop("execution_id") for one in ordered))
