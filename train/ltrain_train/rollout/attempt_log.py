"""The log of a run's attempts on disk: their numbers, and how each rollout ended.

* No two attempts at a rollout share a number: a killed run may have left spans of an attempt
  without a closing span, and the next try must be a new attempt.
* The end of an attempt is logged after its closing span is on disk.
"""

import json
import logging
import threading
from collections.abc import Iterable
from pathlib import Path

from ltrain_instrument.files import make_private
from ltrain_train.workers import COUNTED_OUTCOMES, RolloutResult
from ltrain_transforms.ended_rollout import EndedRollout

_logger = logging.getLogger("ltrain.rollouts")


class AttemptLog:
    """Appends a line when an attempt begins and when it ends; only one process writes at a time."""

    def __init__(self, folder: Path) -> None:
        make_private(folder)
        self._path = folder / "attempts.jsonl"
        self._lock = threading.Lock()
        self._last_attempt: dict[str, int] = {}
        self._ended: dict[str, EndedRollout] = {}
        self._first = 1
        """The lowest number of a new attempt."""
        with self._path.open("a+", errors="replace") as file:
            file.seek(0)
            text = file.read()
            if text and not text.endswith("\n"):
                file.write("\n")  # a kill truncated the last line
        lines = text.splitlines()
        for number, line in enumerate(lines, 1):
            if not self._read_line(line) and line.endswith("}"):  # a kill did not truncate it
                self._first = len(lines) + 1  # the line may have had any number up to this
                _logger.warning("ltrain: line %d of %s is damaged and ignored", number, self._path)

    def has(self, rollout: str, attempt: int) -> bool:
        """Return whether this log has the beginning of an attempt, or may have had it."""
        return attempt <= max(self._last_attempt.get(rollout, 0), self._first - 1)

    def ended(self, rollouts: Iterable[str]) -> list[EndedRollout]:
        """Return those of the rollouts whose last attempt has ended."""
        return [self._ended[each] for each in rollouts if each in self._ended]

    @property
    def finished(self) -> dict[str, EndedRollout]:
        """The rollouts whose last attempt counts, by id."""
        ended = self._ended.items()
        return {name: each for name, each in ended if each.outcome in COUNTED_OUTCOMES}

    def begin(self, rollout: str) -> int:
        """Log the next attempt at `rollout` and return its number, counted from 1."""
        with self._lock:
            number = max(self._last_attempt.get(rollout, 0) + 1, self._first)
            self._write(json.dumps({"rollout": rollout, "attempt": number}))
            self._last_attempt[rollout] = number
            self._ended.pop(rollout, None)
            return number

    def end(self, result: RolloutResult) -> None:
        """Log the end of a rollout's last attempt."""
        ended = end_of(result)
        with self._lock:
            self._write(ended.model_dump_json(exclude_defaults=True))
            self._ended[ended.rollout] = ended

    def _read_line(self, line: str) -> bool:
        """Take note of a line; return whether it can be read."""
        try:
            entry = json.loads(line)
            rollout, attempt = str(entry["rollout"]), int(entry["attempt"])
            ended = EndedRollout.model_validate(entry) if "outcome" in entry else None
        except (ValueError, KeyError, TypeError):
            return False
        if attempt > self._last_attempt.get(rollout, 0):
            self._last_attempt[rollout] = attempt
            self._ended.pop(rollout, None)
        if ended is not None:
            self._ended[rollout] = ended
        return True

    def _write(self, line: str) -> None:
        with self._path.open("a") as file:
            file.write(line + "\n")


def end_of(result: RolloutResult) -> EndedRollout:
    """Return the end of a rollout, as log and journal record it."""
    identity = result.identity
    return EndedRollout(
        rollout=str(identity.rollout),
        attempt=identity.attempt or 0,
        task=str(identity.task),
        wave=identity.wave or 0,
        outcome=result.outcome.value,
        reason=result.reason,
        evaluations=result.rewards,
        spans=result.spans,
    )
