"""Segments of dead processes in a spool's folder, and what stands there in a segment's place."""

import contextlib
import errno
import os
from pathlib import Path

from ltrain_instrument.aside import Aside
from ltrain_instrument.once import Once
from ltrain_instrument.segment import SUFFIX, Segment

NOT_FILES = (errno.EISDIR, errno.EINVAL, errno.ELOOP, errno.ENXIO)
"""What opening a folder, a pipe, a symbolic link or a socket fails with."""


class Orphans:
    """Finds segments without an owner; none that cannot be read hides the others."""

    def __init__(self, directory: Path, aside: Aside, warn: Once) -> None:
        self._directory = directory
        self._aside = aside
        self._warn = warn
        self._passed: set[str] = set()
        """Names that are not looked at again."""
        self.damaged = 0
        """Files, or what stood in their place, that were put aside."""

    def next(self) -> Segment | None:
        """Return one that this process now owns; None where there is none."""
        # A folder that cannot be read holds nothing; an append says what is wrong with it
        with contextlib.suppress(OSError), os.scandir(self._directory) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX) and entry.name not in self._passed:
                    found = self._adopted(Path(entry.path))
                    if found is not None:
                        return found
        return None

    def _adopted(self, path: Path) -> Segment | None:
        try:
            return Segment.adopt(path)
        except OSError as error:
            if error.errno in NOT_FILES:
                self.put_aside(path, f"is no file of spans ({error.strerror})")
            else:
                self.pass_over(path, error)
        return None

    def put_aside(self, path: Path, why: str) -> None:
        """Move what is damaged out of the way, and warn of it."""
        self.damaged += 1
        self._passed.add(path.name)
        self._warn(f"Spool file {str(path)!r} {why}. {self._aside.take(path)}", path.name)

    def pass_over(self, path: Path, error: Exception) -> None:
        """Leave what cannot be read, sent or removed to another process, and warn of it."""
        self._passed.add(path.name)
        self._warn(f"Spool file {str(path)!r} stays where it is: {error}", path.name)
