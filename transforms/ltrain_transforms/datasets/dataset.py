"""A dataset: a directory with one folder of parquet files per table, and `manifest.json`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import polars as pl

from ltrain_instrument.errors import UnknownName
from ltrain_instrument.quantity import quantity
from ltrain_transforms.datasets.manifest import MANIFEST
from ltrain_transforms.errors import DamagedDataset, NoDataset
from ltrain_transforms.file_digests import FileDigest, find_damage, read_sealed
from ltrain_transforms.tables import OTHER_SPAN


@dataclass(frozen=True, slots=True)
class Dataset:
    id: str
    path: Path
    counts: dict[str, int]
    """Rows of each table."""

    def table(self, name: str) -> pl.DataFrame:
        """Read a table.

        Raises:
            UnknownName: when the dataset has no such table.
        """
        if name not in self.counts:
            raise UnknownName("table", name, self.counts)
        return pl.read_parquet(self.path / name)

    def scan(self, name: str) -> pl.LazyFrame:
        """Return a table that is read when the frame is collected."""
        return pl.scan_parquet(self.path / name)

    @property
    def batches(self) -> list["DatasetBatch"]:
        """The batches of whole executions that the dataset contains."""
        files = (self.path / "executions").glob("*.parquet")
        return [DatasetBatch(self.path, file.name) for file in sorted(files)]

    @property
    def is_intact(self) -> bool:
        """Whether its files are as they were written."""
        return self.find_damage() is None

    def find_damage(self) -> str | None:
        """Return the first file that differs from the manifest and how; None if there is none.

        The manifest of an older version of ltrain lists no files: of it, rows are counted.
        """
        listed = self.manifest.get("files")
        if listed is not None:
            files = {name: FileDigest(**file) for name, file in listed.items()}
            return find_damage(self.path, files)
        for name, rows in self.counts.items():
            try:
                found = self.scan(name).select(pl.len()).collect().item()
            except (OSError, pl.exceptions.PolarsError) as error:
                return f"{name} cannot be read ({str(error).splitlines()[0]})"
            if found != rows:
                return f"{name} has {quantity(found, 'row')}, expected {rows}"
        return None

    def require_intact(self) -> Self:
        """Return the dataset, after comparing its files with the manifest.

        Raises:
            DamagedDataset: when a file differs, or is missing.
        """
        if damage := self.find_damage():
            raise DamagedDataset(
                f"The dataset {self.path} is damaged: {damage}. Build it again with `ltrain build "
                "--replace`, or restore the file from a copy."
            )
        return self

    @property
    def drops(self) -> pl.DataFrame:
        """The omitted spans, calls and rows with their reasons: `drops` without `other_spans`."""
        return self.table("drops").filter(pl.col("reason") != OTHER_SPAN)

    @property
    def other_spans(self) -> int:
        """Number of spans that describe no call, such as those of transports."""
        return self.table("drops").filter(reason=OTHER_SPAN).height

    @property
    def manifest(self) -> dict[str, Any]:
        """The content of `manifest.json`, by the fields of `Manifest`."""
        return read_sealed(self.path / MANIFEST)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the dataset in the folder `path`.

        Raises:
            NoDataset: when the folder has no readable manifest, or it is damaged.
        """
        try:
            manifest = read_sealed(path / MANIFEST)
            return cls(manifest["id"], path, dict(manifest["counts"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NoDataset(
                f"{path} is not a dataset: it has no readable {MANIFEST} ({error}). Build one "
                "with `ltrain build`."
            ) from error


@dataclass(frozen=True, slots=True)
class DatasetBatch:
    """Some whole executions of a dataset: one file of each table."""

    path: Path
    file: str

    def table(self, name: str, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Read the rows of a table, or some of its columns.

        Raises:
            NoDataset: when an older version of ltrain built it, without one of the columns.
        """
        try:
            return pl.read_parquet(
                self.path / name / self.file, columns=None if columns is None else list(columns)
            )
        except pl.exceptions.ColumnNotFoundError as error:
            column, _, _ = str(error).partition(";")
            raise NoDataset(
                f"The table {name} of {self.path} was built by another version of ltrain: "
                f"{column}. Build it again with `ltrain build`."
            ) from error
