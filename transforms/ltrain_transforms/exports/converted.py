"""What a conversion gives, and how it is written: one file, and a manifest beside it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from ltrain_instrument.errors import LtrainError
from ltrain_transforms.manifest import reasons

Line = dict[str, Any]


class BadExport(LtrainError, ValueError):
    """A conversion that cannot be written; says what was asked and what mends it."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may ask of a conversion; each reads those that concern it."""

    policy: str | None = None
    """Only this policy's calls."""
    at_least: float | None = None
    """The least outcome of a rollout that is taken."""
    best: int | None = None
    """Take this many of each group, those with the greatest outcome."""
    pairs: int = 1
    """The most preference pairs of a group."""
    tokenizer: Path | None = None
    """A folder with a tokenizer and its chat template."""


@dataclass(frozen=True, slots=True)
class Converted:
    """Rows, and where everything that was looked at went."""

    rows: Sequence[Line] | pl.DataFrame
    lineage: Sequence[Sequence[str]]
    """Of each row the ids it was made from: executions, or calls."""
    drops: pl.DataFrame
    """`DROPS`: what is in no row, and why."""

    def write(self, path: Path, told: dict[str, Any]) -> dict[str, Any]:
        """Write the rows to `path`, and `told`, counts and lineage beside it; gives the latter."""
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.part")
        if isinstance(self.rows, pl.DataFrame):
            self.rows.write_parquet(beside, compression="zstd")
        else:
            lines = (json.dumps(row, ensure_ascii=False, allow_nan=False) for row in self.rows)
            # half of a surrogate pair, which JSON can escape, has no UTF-8
            beside.write_bytes("".join(f"{line}\n" for line in lines).encode(errors="replace"))
        beside.rename(path)
        manifest = {
            **told,
            "rows": len(self.rows),
            "drops": reasons(self.drops),
            "left_out": self.drops.select("id", "reason", "detail").to_dicts(),
            "lineage": [list(ids) for ids in self.lineage],
        }
        place = path.with_name(f"{path.name}.manifest.json")
        place.write_text(json.dumps(manifest, indent=1, default=str) + "\n")
        return manifest
