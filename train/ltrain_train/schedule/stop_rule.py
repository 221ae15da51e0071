"""When a run ends before its last update: without progress in validation, or at a budget."""

from collections.abc import Sequence
from dataclasses import dataclass


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
