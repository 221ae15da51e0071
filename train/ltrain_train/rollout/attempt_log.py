"""The log of a run's attempts on disk: their numbers, and how each rollout ended.

* No two attempts at a rollout share a number: a killed run may have left spans of an attempt
  without a closing span, and the next try must be a new attempt.
* The end of an attempt is logged before its closing span is written, and a second line follows
  when the span is on disk. If a kill leaves that line out, the next process writes the span again.
* A line ends with a checksum: a damaged one is named and ignored, and its rollout runs again.
"""

import json
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

from ltrain_instrument.files import make_private
from ltrain_train.rollout.runner_spans import ClosingSpan
from ltrain_train.workers import COUNTED_OUTCOMES, RolloutResult
from ltrain_transforms.ended_rollout import EndedRollout

SEPARATOR = b" #"
"""Between the JSON of a line and the CRC-32 of it."""

_logger = logging.getLogger("ltrain.rollouts")


class AttemptLog:
    """Appends a line when an attempt begins and when it ends; only one process writes at a time."""

    def __init__(self, folder: Path) -> None:
        make_private(folder)
        self._path = folder / "attempts.jsonl"
        # kept open: a process that can open no further file still logs the ends of its attempts
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        weakref.finalize(self, os.close, self._file)
        self._lock = threading.Lock()
        self._last_attempt: dict[str, int] = {}
        self._ended: dict[str, EndedRollout] = {}
        self._unclosed: dict[tuple[str, int], ClosingSpan] = {}
        """The closing spans that may not be on disk, by rollout and attempt."""
        self._first = 1
        """The lowest number of a new attempt."""
        content = self._path.read_bytes()
        complete, _, cut = content.rpartition(b"\n")
        if cut:  # a kill truncated the last line
            os.truncate(self._file, len(content) - len(cut))
        lines = complete.split(b"\n") if complete else []
        for number, line in enumerate(lines, 1):
            if not self._read_line(line):
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

    @contextmanager
    def end(self, result: RolloutResult, closing: ClosingSpan) -> Iterator[None]:
        """Log the end of a rollout's last attempt; the block writes its closing span."""
        ended = end_of(result)
        line = ended.model_dump(exclude_defaults=True) | {"closing": closing.model_dump()}
        with self._lock:
            self._write(json.dumps(line))
            self._ended[ended.rollout] = ended
        yield
        self._log_closed(ended.rollout, ended.attempt)

    def close_ended(self, write: Callable[[ClosingSpan], None]) -> None:
        """Write the closing spans that an earlier process may not have written."""
        for (rollout, attempt), closing in self._unclosed.items():
            write(closing)
            self._log_closed(rollout, attempt)
        self._unclosed.clear()

    def _log_closed(self, rollout: str, attempt: int) -> None:
        with self._lock:
            self._write(json.dumps({"rollout": rollout, "attempt": attempt, "closed": True}))

    def _read_line(self, line: bytes) -> bool:
        """Take note of a line; return whether it is intact."""
        if (entry := read_entry(line)) is None:
            return False
        rollout, attempt = entry["rollout"], entry["attempt"]
        if attempt > self._last_attempt.get(rollout, 0):
            self._last_attempt[rollout] = attempt
            self._ended.pop(rollout, None)
        if "closed" in entry:
            self._unclosed.pop((rollout, attempt), None)
        if closing := entry.pop("closing", None):
            self._unclosed[rollout, attempt] = ClosingSpan.model_validate(closing)
        if "outcome" in entry:
            self._ended[rollout] = EndedRollout.model_validate(entry)
        return True

    def _write(self, text: str) -> None:
        content = text.encode()
        line = memoryview(content + SEPARATOR + b"%d\n" % crc32(content))
        while line:
            line = line[os.write(self._file, line) :]


def read_entry(line: bytes) -> dict[str, Any] | None:
    """Return the object of a line of the log; None if the line is damaged."""
    text, _, checksum = line.rpartition(SEPARATOR)
    if checksum != b"%d" % crc32(text):
        return None
    entry: dict[str, Any] = json.loads(text)
    return entry


def end_of(result: RolloutResult) -> EndedRollout:
    """Return the end of a rollout, as log and journal record it."""
    identity = result.identity
    return EndedRollout(
        rollout=str(identity.rollout),
        attempt=identity.attempt or 0,
        task=str(identity.task),
        wave=identity.wave or 0,
        outcome=result.outcome.value,
        reason=result.reason.encode(errors="replace").decode(),  # it may have half a surrogate pair
        evaluations=result.rewards,
        spans=result.spans,
    )
