"""A running export: it reads a dataset batch by batch and stores the rows of each on disk.

Only ids and numbers of the whole dataset are in memory. The rows of an execution go to a temporary
file at once, and from there to the output in the order of execution ids. The batches have another
order if the dataset was updated or its executions are sessions.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ltrain_transforms.datasets import Dataset, DatasetBatch, Progress, ignore_progress
from ltrain_transforms.exports.conversion import ExportOptions


class FileRange(NamedTuple):
    """A range of bytes in the temporary file."""

    offset: int
    length: int


class Piece(NamedTuple):
    """Rows that were made together."""

    key: str
    """The sort key: an execution id."""
    content: FileRange
    lineage: list[list[str]]
    """For each row the ids of its executions or calls."""


class ExportJob:
    def __init__(
        self,
        dataset: Dataset,
        options: ExportOptions,
        folder: Path,
        progress: Progress = ignore_progress,
    ) -> None:
        self.dataset, self.options = dataset, options
        self._file = (folder / "pieces").open("w+b")
        self.progress = progress

    def __enter__(self) -> "ExportJob":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def batches(self) -> Iterator[DatasetBatch]:
        """Yield every batch of the dataset, and report progress after each."""
        batches = self.dataset.batches
        for done, batch in enumerate(batches, 1):
            yield batch
            self.progress("read", done, len(batches))

    def store(self, content: bytes) -> FileRange:
        """Append bytes to the temporary file."""
        return FileRange(self._file.seek(0, 2), self._file.write(content))

    def load(self, content: FileRange) -> bytes:
        """Read bytes from the temporary file."""
        self._file.seek(content.offset)
        return self._file.read(content.length)

    def load_pieces(self, pieces: list[Piece]) -> Iterator[bytes]:
        """Yield the bytes of every piece, and report progress after each."""
        for done, piece in enumerate(pieces, 1):
            yield self.load(piece.content)
            self.progress("write", done, len(pieces))


def lineage(pieces: list[Piece]) -> list[list[str]]:
    """Return the lineage of each row of all pieces."""
    return [ids for piece in pieces for ids in piece.lineage]


@dataclass(slots=True)
class TaskRows:
    """One row per task: the row of its first execution, by execution id, that has one."""

    job: ExportJob
    executions: dict[str, list[str]] = field(default_factory=dict)
    """The ids of the executions of each task."""
    rows: dict[str, Piece] = field(default_factory=dict)
    """The row of each task."""

    def add_execution(self, task: str, execution: str) -> None:
        """Count an execution to the lineage of its task."""
        self.executions.setdefault(task, []).append(execution)

    def add_row(self, task: str, execution: str, row: bytes) -> None:
        """Store the row of an execution, unless an earlier execution of the task has one."""
        stored = self.rows.get(task)
        if stored is None or execution < stored.key:
            self.rows[task] = Piece(execution, self.job.store(row), [self.executions[task]])

    def pieces(self) -> list[Piece]:
        """Return the rows in order; the lineage of each is every execution of its task."""
        for ids in self.executions.values():
            ids.sort()
        return sorted(self.rows.values())

    @property
    def without_row(self) -> list[str]:
        """The ids of the executions whose task has no row."""
        tasks = self.executions.keys() - self.rows.keys()
        return [execution for task in tasks for execution in self.executions[task]]
