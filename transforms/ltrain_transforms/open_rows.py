"""The rows of an execution that later calls may still join, found by their tokens.

Contexts lie in the order of their bytes, so that those which a prompt goes on from, and the one
that it agrees with longest, are its neighbours: a rollout of a thousand sub-agents is no square.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np

BYTES = 4
"""A token id is an unsigned integer of 32 bits."""


@dataclass(slots=True)
class Row:
    opener: int
    """The call that began it."""
    last: int
    """The call that joined it last."""
    temperature: float


class OpenRows:
    def __init__(self) -> None:
        self._contexts: list[bytes] = []
        """All tokens of each row so far, in order."""
        self._rows: list[Row] = []

    def put(self, row: Row, context: bytes) -> None:
        """Add a row, or one that was taken, with its tokens so far."""
        place = bisect_right(self._contexts, context)
        self._contexts.insert(place, context)
        self._rows.insert(place, row)

    def take(self, prompt: bytes, temperature: float) -> Row | None:
        """Take out the row with the longest context that `prompt` begins with; the first of equals.

        None, where no row of that temperature is one.
        """
        key = prompt
        while (place := bisect_right(self._contexts, key) - 1) >= 0:
            context = self._contexts[place]
            if not prompt.startswith(context):
                # a context that the prompt begins with is no longer than what these two share
                key = prompt[: _agreed(context, prompt) * BYTES]
                continue
            equals = range(bisect_left(self._contexts, context), place + 1)
            fitting = [one for one in equals if self._rows[one].temperature == temperature]
            if fitting:
                chosen = min(fitting, key=lambda one: self._rows[one].opener)
                del self._contexts[chosen]
                return self._rows.pop(chosen)
            key = context[:-1]
        return None

    def nearest(self, prompt: bytes) -> tuple[int, int]:
        """Find the row that agrees with `prompt` longest, the first to begin of equals.

        Gives its last call and the number of tokens; -1 and -1, where there is no row.
        """
        if not self._rows:
            return -1, -1
        place = bisect_right(self._contexts, prompt)
        beside = self._contexts[max(place - 1, 0) : place + 1]
        agreed = max(_agreed(context, prompt) for context in beside)
        shared = prompt[: agreed * BYTES]
        first = bisect_left(self._contexts, shared)
        end = bisect_right(self._contexts, shared + b"\xff" * BYTES)  # no id is so great
        row = min(self._rows[first:end], key=lambda one: one.opener)
        return row.last, agreed


def _agreed(one: bytes, other: bytes) -> int:
    """Count the tokens with which both begin."""
    length = min(len(one), len(other)) // BYTES
    differ = np.frombuffer(one, np.uint32, length) != np.frombuffer(other, np.uint32, length)
    return int(differ.argmax()) if differ.any() else length
