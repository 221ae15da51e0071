"""Segments of dead processes in a spool's folder, and whatever else has a segment's name there."""

import contextlib
import errno
import os
from pathlib import Path

from ltrain_instrument.delivery.otlp_client import WarnOnce
from ltrain_instrument.delivery.segment import SUFFIX, Quarantine, Segment

NOT_A_FILE_ERRORS = (errno.EISDIR, errno.EINVAL, errno.ELOOP, errno.ENXIO)
"""Errors of opening a folder, a pipe, a symbolic link or a socket."""


class OrphanSegments:
    """Finds segments without an owner; an unreadable one does not hide the others."""

    def __init__(self, directory: Path, quarantine: Quarantine, warn: WarnOnce) -> None:
        self._directory = directory
        self._quarantine = quarantine
        self._warn = warn
        self._skipped: set[str] = set()
        """Names of files that are not tried again."""
        self.damaged = 0
        """Number of files, or of what had a file's name, that were moved to quarantine."""

    def adopt_next(self) -> Segment | None:
        """Return a segment that this process now owns; None if there is none."""
        # An unreadable folder counts as empty; an append raises the error
        with contextlib.suppress(OSError), os.scandir(self._directory) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX) and entry.name not in self._skipped:
                    segment = self._adopt(Path(entry.path))
                    if segment is not None:
                        return segment
        return None

    def _adopt(self, path: Path) -> Segment | None:
        try:
            return Segment.adopt(path)
        except OSError as error:
            if error.errno in NOT_A_FILE_ERRORS:
                self.quarantine(path, f"is not a regular file ({error.strerror})")
            else:
                self.skip(path, error)
        return None

    def quarantine(self, path: Path, reason: str) -> None:
        """Move a damaged file out of the way, with a warning."""
        self.damaged += 1
        self._skipped.add(path.name)
        self._warn(
            f"Spool file {str(path)!r} {reason}. {self._quarantine.move_file(path)}", path.name
        )

    def skip(self, path: Path, error: Exception) -> None:
        """Leave a file that cannot be read, sent or removed to other processes, with a warning."""
        self._skipped.add(path.name)
        self._warn(f"Spool file {str(path)!r} is skipped: {error}", path.name)
