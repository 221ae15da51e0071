"""The schedule of a run: whether waves overlap, and when it ends before its last update."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

UPDATES = 2
"""Measured updates of each mode; one before them is left out: it warms up, or changes the mode."""
GAIN = 0.95
"""Most seconds of an asynchronous update, relative to a synchronous one: staleness has a price."""


class ModeTrial:
    """Runs the first updates synchronously, the next ones asynchronously, and then the faster."""

    def __init__(self, mode: str) -> None:
        """Begin a trial for the mode `auto`; `sync` and `async` need none."""
        self._mode, self._seconds = mode, list[float]()

    @property
    def waves_ahead(self) -> int:
        """How many waves are sampled while one is trained on."""
        is_async = len(self._seconds) > UPDATES if self._mode == "auto" else self._mode == "async"
        return int(is_async)

    def add(self, seconds: float) -> str:
        """Add the seconds of an update; return a sentence if it ends the trial, else ''."""
        if self._mode != "auto":
            return ""
        self._seconds.append(seconds)
        if len(self._seconds) < 2 * (UPDATES + 1):
            return ""
        sync, overlapped = (
            mean(self._seconds[begin : begin + UPDATES]) for begin in (1, UPDATES + 2)
        )
        self._mode = "async" if overlapped < GAIN * sync else "sync"
        return (
            f'train.mode = "auto": an update takes {sync:.1f} s with "sync" and {overlapped:.1f} s '
            f'with "async"; the run goes on with "{self._mode}".'
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """The limits of a run; None: there is none."""

    patience: int | None = None
    """Validations in a row without a new best score."""
    tokens: int | None = None
    """Tokens of the rows that the run was trained on."""
    minutes: float | None = None
    """Wall time since the start of the command."""

    def reason(self, scores: Sequence[float], *, tokens: int, minutes: float) -> str:
        """Return why the run ends now, as a part of a sentence; '' if it goes on.

        Args:
            scores: the scores of the validations, oldest first.
            tokens: those of the rows of all updates.
            minutes: since the start of the command.
        """
        if self.patience is not None and scores:
            best = max(range(len(scores)), key=lambda number: (scores[number], -number))
            since = len(scores) - 1 - best
            if since >= self.patience:
                return f"{since} validations in a row have no better score than {scores[best]:.3f}"
        if self.tokens is not None and tokens >= self.tokens:
            return f"it was trained on {tokens} tokens, and train.max_tokens is {self.tokens}"
        if self.minutes is not None and minutes >= self.minutes:
            return f"it took {minutes:.1f} minutes, and train.max_minutes is {self.minutes:g}"
        return ""
