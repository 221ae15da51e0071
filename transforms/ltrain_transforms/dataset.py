"""A dataset: a directory with a folder of parquet files a table, and `manifest.json`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import polars as pl

from ltrain_instrument.errors import UnknownName
from ltrain_transforms.errors import NoDataset
from ltrain_transforms.manifest import MANIFEST


@dataclass(frozen=True, slots=True)
class Dataset:
    id: str
    path: Path
    counts: dict[str, int]
    """Rows of each table."""

    def table(self, name: str) -> pl.DataFrame:
        """Give one of its tables.

        Raises:
            UnknownName: when there is none of that name.
        """
        if name not in self.counts:
            raise UnknownName("table", name, self.counts)
        return pl.read_parquet(self.path / name)

    @property
    def batches(self) -> list["Batch"]:
        """What it was built from piece by piece, each of whole executions."""
        files = (self.path / "executions").glob("*.parquet")
        return [Batch(self.path, file.name) for file in sorted(files)]

    @property
    def whole(self) -> bool:
        """Whether its files are there, can be read and hold the rows that its manifest says."""
        try:
            return all(
                pl.scan_parquet(self.path / name).select(pl.len()).collect().item() == rows
                for name, rows in self.counts.items()
            )
        except (OSError, pl.exceptions.PolarsError):
            return False

    @property
    def drops(self) -> pl.DataFrame:
        """What was left out, with the reason."""
        return self.table("drops")

    @property
    def manifest(self) -> dict[str, Any]:
        """What it was made from."""
        return dict(json.loads((self.path / MANIFEST).read_text()))

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a dataset that was built.

        Raises:
            NoDataset: when there is none.
        """
        try:
            manifest = json.loads((path / MANIFEST).read_text())
            return cls(manifest["id"], path, dict(manifest["counts"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NoDataset(
                f"{path} is no dataset: it has no readable {MANIFEST}. `ltrain build` makes one."
            ) from error


@dataclass(frozen=True, slots=True)
class Batch:
    """Whole executions of a dataset: a file of each table."""

    path: Path
    file: str

    def table(self, name: str, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Give their rows of a table."""
        return pl.read_parquet(
            self.path / name / self.file, columns=None if columns is None else list(columns)
        )
