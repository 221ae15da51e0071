"""The file of closed attempts, by which a restarted gateway refuses their keys.

* A line is on disk (O_DSYNC) before the close that it records is answered.
* A line that a crash left half-written is ignored: its close was not answered.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ValidationError

from ltrain_instrument.clock import Deadline


class CloseRecord(BaseModel):
    """One closed attempt, as a line of the file."""

    rollout: str
    attempt: int
    expires: Deadline
    """When the attempt's key expires."""
    counts: dict[str, float]
    """The result of the close."""


class ClosedAttempts:
    """The closed attempts in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)

    def read(self) -> Iterator[CloseRecord]:
        """Yield the attempts whose keys have not expired."""
        lines = self._path.read_bytes().splitlines() if self._path.exists() else []
        for line in lines:
            try:
                closed = CloseRecord.model_validate_json(line)
            except ValidationError:
                continue  # half-written or empty
            if closed.expires.left > 0:
                yield closed

    def append(self, closed: CloseRecord) -> None:
        """Write an attempt to disk."""
        # few system calls: after each, a thread that computes may have to be waited for
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_DSYNC, 0o600)
        try:
            # the first line break ends a line that a crash left half-written
            line = f"\n{closed.model_dump_json()}\n".encode()
            if os.write(file, line) != len(line):
                raise OSError(f"The disk of '{self._path}' is full.")
        finally:
            os.close(file)
