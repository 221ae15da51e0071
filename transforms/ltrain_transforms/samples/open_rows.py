"""The rows of an execution that later calls may still join, searched by their tokens.

Contexts are sorted by their bytes. So the contexts that a prompt continues, and the one with which
it has the longest common prefix, are its neighbours: a rollout of a thousand sub-agents does not
take a thousand squared comparisons.
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

    def insert(self, row: Row, context: bytes) -> None:
        """Add a new row, or a popped one, with all its tokens so far."""
        index = bisect_right(self._contexts, context)
        self._contexts.insert(index, context)
        self._rows.insert(index, row)

    def pop_prefix(self, prompt: bytes, temperature: float) -> Row | None:
        """Remove and return the row with the longest context that is a prefix of `prompt`.

        Of equal contexts, the row that began first. None if no row of that temperature is one.
        """
        key = prompt
        while (index := bisect_right(self._contexts, key) - 1) >= 0:
            context = self._contexts[index]
            if not prompt.startswith(context):
                # a context that is a prefix of the prompt is no longer than what these two share
                key = prompt[: _common_prefix(context, prompt) * BYTES]
                continue
            equals = range(bisect_left(self._contexts, context), index + 1)
            candidates = [one for one in equals if self._rows[one].temperature == temperature]
            if candidates:
                first = min(candidates, key=lambda one: self._rows[one].opener)
                del self._contexts[first]
                return self._rows.pop(first)
            key = context[:-1]
        return None

    def find_nearest(self, prompt: bytes) -> tuple[int, int]:
        """Return the last call of the row with the longest common prefix, and its number of tokens.

        Of equals, the row that began first; -1 and -1 if there is no row.
        """
        if not self._rows:
            return -1, -1
        index = bisect_right(self._contexts, prompt)
        neighbours = self._contexts[max(index - 1, 0) : index + 1]
        length = max(_common_prefix(context, prompt) for context in neighbours)
        prefix = prompt[: length * BYTES]
        begin = bisect_left(self._contexts, prefix)
        end = bisect_right(self._contexts, prefix + b"\xff" * BYTES)  # larger than any token id
        row = min(self._rows[begin:end], key=lambda one: one.opener)
        return row.last, length


def _common_prefix(one: bytes, other: bytes) -> int:
    """Count the tokens with which both begin."""
    length = min(len(one), len(other)) // BYTES
    differ = np.frombuffer(one, np.uint32, length) != np.frombuffer(other, np.uint32, length)
    return int(differ.argmax()) if differ.any() else length
