"""A conversion under way: a dataset batch by batch, and on disk what was made of each.

Only ids and numbers are kept in memory for all of a dataset. What a form makes of an execution goes
to a file at once, and from there to the output in the order of the executions' ids, which is not
that of the batches where a dataset was added to or its executions are sessions.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ltrain_transforms.build import Progress, silent
from ltrain_transforms.dataset import Batch, Dataset
from ltrain_transforms.exports.converted import Options


class Place(NamedTuple):
    """Where something lies in the file."""

    offset: int
    length: int


class Piece(NamedTuple):
    """Rows that were made together."""

    key: str
    """Puts them in order: an execution's id."""
    place: Place
    lineage: list[list[str]]
    """Of each row the ids it was made from."""


class Work:
    def __init__(
        self, dataset: Dataset, options: Options, folder: Path, progress: Progress = silent
    ) -> None:
        self.dataset, self.options = dataset, options
        self._file = (folder / "pieces").open("w+b")
        self.progress = progress

    def __enter__(self) -> "Work":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def batches(self) -> Iterator[Batch]:
        """Give every batch of the dataset, and say when one is done."""
        every = self.dataset.batches
        for done, batch in enumerate(every, 1):
            yield batch
            self.progress("read", done, len(every))

    def keep(self, held: bytes) -> Place:
        """Put something aside."""
        return Place(self._file.seek(0, 2), self._file.write(held))

    def kept(self, place: Place) -> bytes:
        """Give what was put aside."""
        self._file.seek(place.offset)
        return self._file.read(place.length)

    def each(self, pieces: list[Piece]) -> Iterator[bytes]:
        """Give every piece, and say when it is taken."""
        for done, piece in enumerate(pieces, 1):
            yield self.kept(piece.place)
            self.progress("write", done, len(pieces))


def lineage(pieces: list[Piece]) -> list[list[str]]:
    """Give what each row of all pieces was made from."""
    return [ids for piece in pieces for ids in piece.lineage]
