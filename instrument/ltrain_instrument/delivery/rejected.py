"""A folder for files and requests that cannot be sent, so that a person can inspect them."""

from pathlib import Path

from ltrain_instrument.delivery.disk_quota import DiskQuota
from ltrain_instrument.delivery.segment import Segment
from ltrain_instrument.private import make_private


class Quarantine:
    """One such folder, with a size limit in bytes that processes share."""

    def __init__(self, directory: Path, limit: int) -> None:
        self.directory = directory
        self._quota = DiskQuota(directory, limit)

    def write_request(self, request: bytes) -> None:
        """Write one request to a file of its own.

        Raises:
            SpoolFull: when the folder has reached its limit.
            OSError: when the folder is not writable.
        """
        self._quota.reserve(len(request))
        segment = Segment.create(self.directory)
        try:
            segment.append(request)
        finally:
            segment.release()

    def move_file(self, path: Path) -> str:
        """Move a file, or what is in its place, into the folder; return the result in words."""
        try:
            self._quota.reserve(path.lstat().st_size)
            make_private(self.directory)
            target = path.rename(self.directory / path.name)
        except OSError as error:  # the folder is full or not writable
            return f"It was not moved: {error}"
        return f"It was moved to {str(target)!r}."
