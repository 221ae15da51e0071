"""A folder for what cannot be sent, where a person may look at it, as long as there is room."""

from pathlib import Path

from ltrain_instrument.allowance import Allowance
from ltrain_instrument.private import make_private
from ltrain_instrument.segment import Segment


class Aside:
    """One such folder; processes that share it do not talk."""

    def __init__(self, directory: Path, limit: int) -> None:
        self.directory = directory
        self._allowance = Allowance(directory, limit)

    def keep(self, request: bytes) -> None:
        """Write one request to a file of its own.

        Raises:
            SpoolFull: when there is no room.
            OSError: when the folder cannot be written.
        """
        self._allowance.take(len(request))
        kept = Segment.create(self.directory)
        try:
            kept.append(request)
        finally:
            kept.release()

    def take(self, path: Path) -> str:
        """Move a file, or whatever stands in its place, here; return in words where it is."""
        try:
            self._allowance.take(path.lstat().st_size)
            make_private(self.directory)
            moved = path.rename(self.directory / path.name)
        except OSError as error:  # no room, or no right to
            return f"It stays where it is: {error}"
        return f"It is kept as {str(moved)!r}."
