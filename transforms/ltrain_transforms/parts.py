"""A dataset in the making: numbered parquet files, a folder a table, beside the place it goes to.

It appears whole or not at all. What killed work left is removed by the next.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from ltrain_instrument.private import OWNER_ONLY, make_private
from ltrain_transforms.digest import rows_digest
from ltrain_transforms.errors import NoDataset, writing_output
from ltrain_transforms.manifest import MANIFEST, ordered

COMPRESSION_LEVEL = 1
"""Of zstd: a third faster to write than its usual 3, for a few percent more bytes."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one file holds."""

    table: str
    rows: int
    digest: int


@dataclass(frozen=True, slots=True)
class Draft:
    """The folder that becomes a dataset; any process may write into it, each file once."""

    folder: Path

    def table(self, name: str) -> Path:
        """Give the folder of a table, `work/…` for what only the build needs."""
        return self.folder / name

    def write(self, name: str, number: int, frame: pl.DataFrame) -> Part:
        """Write the rows of a table in their own order."""
        rows = ordered(name, frame)
        self.keep(name, number, rows)
        return Part(name, rows.height, rows_digest(rows))

    def keep(self, name: str, number: int, frame: pl.DataFrame) -> None:
        """Write a file as it is."""
        path = self.file(name, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.write_parquet(path, compression="zstd", compression_level=COMPRESSION_LEVEL)

    def hand_over(self, name: str, number: int, frame: pl.DataFrame) -> Path:
        """Leave a frame for another process, who maps it: no copy is made there."""
        path = self.file(name, number).with_suffix(".arrow")
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.write_ipc(path, compression="uncompressed")
        return path

    def take(self, before: Path) -> int:
        """Have the files of a dataset that was built, and give the next free number."""
        numbers = [-1]
        for file in before.glob("*/*.parquet"):
            target = self.folder / file.relative_to(before)
            target.parent.mkdir(exist_ok=True)
            os.link(file, target)
            numbers.append(int(file.stem))
        return max(numbers) + 1

    def file(self, name: str, number: int) -> Path:
        return self.table(name) / f"{number:05}.parquet"

    def read(self, name: str, number: int, columns: list[str] | None = None) -> pl.DataFrame:
        return pl.read_parquet(self.file(name, number), columns=columns)


@contextmanager
def draft(out: Path) -> Iterator[Draft]:
    """Have a folder to write into; on leaving without an error it takes the place of `out`.

    Raises:
        NoDataset: when `out` is there and is no dataset.
        Unwritable: when it cannot be written, or the disk is full.
    """
    before = out.with_name(f".{out.name}-before-{os.getpid()}")
    with writing_output("The dataset", out):
        if out.exists() and not (out / MANIFEST).exists() and not _empty(out):
            raise NoDataset(f"{out} is there and is no dataset; name another folder with --out.")
        with beside(out) as folder:
            yield Draft(folder)
            shutil.rmtree(folder / "work", ignore_errors=True)
            if out.exists():
                out.rename(before)  # deleting takes time, in which a kill would leave half of it
            folder.rename(out)
            shutil.rmtree(before, ignore_errors=True)


@contextmanager
def beside(out: Path) -> Iterator[Path]:
    """Have an empty folder beside `out`, of its file system; it is gone afterwards."""
    make_private(out.parent)
    _sweep(out)
    folder = out.with_name(f".{out.name}-{os.getpid()}").absolute()
    folder.mkdir(OWNER_ONLY)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _empty(out: Path) -> bool:
    return out.is_dir() and not any(out.iterdir())


def _sweep(out: Path) -> None:
    for left in out.parent.glob(f".{out.name}-*"):
        process = left.name.rpartition("-")[2]
        if process.isdigit() and not Path(f"/proc/{process}").exists():
            shutil.rmtree(left)
