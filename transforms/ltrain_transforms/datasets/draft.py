"""A dataset that is being built: numbered parquet files, one folder per table.

The draft replaces the dataset when it is complete.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from ltrain_instrument.files import replace_directory
from ltrain_transforms.datasets.digest import rows_digest
from ltrain_transforms.datasets.manifest import MANIFEST, sort_rows
from ltrain_transforms.errors import NoDataset, writing_output
from ltrain_transforms.file_digests import FileDigest, describe_files

COMPRESSION_LEVEL = 1
"""Of zstd: a third faster to write than the default, 3, for a few percent more bytes."""


@dataclass(frozen=True, slots=True)
class Part:
    """The content of one file."""

    table: str
    rows: int
    digest: int


@dataclass(frozen=True, slots=True)
class Draft:
    """The folder that becomes a dataset; any process may write to it, each file once."""

    folder: Path

    def table_folder(self, name: str) -> Path:
        """Return the folder of a table; `work/…` holds what only the build needs."""
        return self.folder / name

    def write_table(self, name: str, number: int, frame: pl.DataFrame) -> Part:
        """Write rows of a table, sorted by the keys of the table."""
        rows = sort_rows(name, frame)
        self.write_file(name, number, rows)
        return Part(name, rows.height, rows_digest(rows))

    def write_file(self, name: str, number: int, frame: pl.DataFrame) -> None:
        """Write a frame as one parquet file."""
        path = self.file_path(name, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.write_parquet(path, compression="zstd", compression_level=COMPRESSION_LEVEL)

    def write_shared(self, name: str, number: int, frame: pl.DataFrame) -> Path:
        """Write a frame as uncompressed Arrow IPC, which another process maps without a copy."""
        path = self.file_path(name, number).with_suffix(".arrow")
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.write_ipc(path, compression="uncompressed")
        return path

    def link_files(self, dataset: Path) -> int:
        """Hard-link the files of an existing dataset, and return the next free file number."""
        numbers = [-1]
        for file in dataset.glob("*/*.parquet"):
            target = self.folder / file.relative_to(dataset)
            target.parent.mkdir(exist_ok=True)
            os.link(file, target)
            numbers.append(int(file.stem))
        return max(numbers) + 1

    def describe(self) -> dict[str, FileDigest]:
        """Return the sizes and digests of the dataset's files, by their paths in its folder."""
        files = sorted(self.folder.glob("*/*.parquet"))
        return describe_files({file.relative_to(self.folder).as_posix(): file for file in files})

    def file_path(self, name: str, number: int) -> Path:
        return self.table_folder(name) / f"{number:05}.parquet"

    def read_file(self, name: str, number: int, columns: list[str] | None = None) -> pl.DataFrame:
        return pl.read_parquet(self.file_path(name, number), columns=columns)


@contextmanager
def open_draft(out: Path) -> Iterator[Draft]:
    """Open a draft that replaces `out` when the block ends without an error."""
    with writing_output("The dataset", out):
        if out.exists() and not (out / MANIFEST).exists() and not _is_empty_folder(out):
            raise NoDataset(f"{out} exists and is not a dataset. Choose another folder with --out.")
        if (out.parent / MANIFEST).exists():
            raise NoDataset(
                f"{out.parent} is a dataset, so {out.name} cannot be written in it. Move it away, "
                "or choose another folder with --out."
            )
        with replace_directory(out) as folder:
            yield Draft(folder)
            shutil.rmtree(folder / "work", ignore_errors=True)


def _is_empty_folder(out: Path) -> bool:
    return out.is_dir() and not any(out.iterdir())
