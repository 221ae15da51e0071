"""Which attempts a run has begun, on disk, so that no two of them ever share a number.

A run that was killed may have left spans of an attempt that nobody closed; what is tried again is
another attempt.
"""

import json
from pathlib import Path

from ltrain_instrument.private import make_private
from ltrain_train.rollout.attempt import COUNTING, Outcome


class Ledger:
    """Appends a line at each beginning and each end; one process at a time writes it."""

    def __init__(self, folder: Path) -> None:
        make_private(folder)
        self._path = folder / "attempts.jsonl"
        self._last: dict[str, int] = {}
        self.finished: set[str] = set()
        """Rollouts with an outcome that counts."""
        with self._path.open("a+") as file:
            file.seek(0)
            text = file.read()
            if text and not text.endswith("\n"):
                file.write("\n")  # a kill tore the last line
        for line in text.splitlines():
            self._read(line)

    def begin(self, rollout: str) -> int:
        """Give the number of the next attempt at `rollout`, counted from 1."""
        number = self._last[rollout] = self._last.get(rollout, 0) + 1
        self._write({"rollout": rollout, "attempt": number})
        return number

    def end(self, rollout: str, attempt: int, outcome: Outcome) -> None:
        """Note how an attempt ended."""
        self._write({"rollout": rollout, "attempt": attempt, "outcome": outcome.value})
        if outcome in COUNTING:
            self.finished.add(rollout)

    def _read(self, line: str) -> None:
        try:
            said = json.loads(line)
        except ValueError:
            return  # the torn line
        rollout, attempt = str(said["rollout"]), int(said["attempt"])
        self._last[rollout] = max(attempt, self._last.get(rollout, 0))
        if said.get("outcome") in COUNTING:
            self.finished.add(rollout)

    def _write(self, line: dict[str, str | int]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
