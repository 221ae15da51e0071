"""The log of a run's attempts on disk, so that no two attempts at a rollout share a number.

A killed run may have left spans of an attempt without a closing span; the next try must be a new
attempt.
"""

import json
import logging
from pathlib import Path

from ltrain_instrument.files import make_private
from ltrain_train.workers import COUNTED_OUTCOMES, Outcome

_logger = logging.getLogger("ltrain.rollouts")


class AttemptLog:
    """Appends a line when an attempt begins and when it ends; only one process writes at a time."""

    def __init__(self, folder: Path) -> None:
        make_private(folder)
        self._path = folder / "attempts.jsonl"
        self._last_attempt: dict[str, int] = {}
        self.finished: dict[str, str] = {}
        """The outcome of each rollout whose last attempt counts, by rollout id."""
        with self._path.open("a+", errors="replace") as file:
            file.seek(0)
            text = file.read()
            if text and not text.endswith("\n"):
                file.write("\n")  # a kill truncated the last line
        for number, line in enumerate(text.splitlines(), 1):
            if not self._read_line(line) and line.endswith("}"):  # a kill did not truncate it
                _logger.warning("ltrain: line %d of %s is damaged and ignored", number, self._path)

    def has(self, rollout: str, attempt: int) -> bool:
        """Return whether this log has the beginning of an attempt."""
        return attempt <= self._last_attempt.get(rollout, 0)

    @property
    def unfinished(self) -> set[str]:
        """The rollouts whose last attempt was cut off or does not count.

        It replaces an earlier attempt that counts, whose spans may have arrived after it began.
        """
        return self._last_attempt.keys() - self.finished.keys()

    def begin(self, rollout: str) -> int:
        """Log the next attempt at `rollout` and return its number, counted from 1."""
        number = self._last_attempt[rollout] = self._last_attempt.get(rollout, 0) + 1
        self.finished.pop(rollout, None)
        self._write({"rollout": rollout, "attempt": number})
        return number

    def end(self, rollout: str, attempt: int, outcome: Outcome) -> None:
        """Log the outcome of an attempt."""
        self._write({"rollout": rollout, "attempt": attempt, "outcome": outcome.value})
        if outcome in COUNTED_OUTCOMES:
            self.finished[rollout] = outcome.value

    def _read_line(self, line: str) -> bool:
        """Take note of a line; return whether it can be read."""
        try:
            entry = json.loads(line)
            rollout, attempt = str(entry["rollout"]), int(entry["attempt"])
        except (ValueError, KeyError, TypeError):
            return False
        if attempt > self._last_attempt.get(rollout, 0):
            self._last_attempt[rollout] = attempt
            self.finished.pop(rollout, None)
        if entry.get("outcome") in COUNTED_OUTCOMES:
            self.finished[rollout] = entry["outcome"]
        return True

    def _write(self, line: dict[str, str | int]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
