"""Calls whose tokens continue each other, merged into one training row.

A call joins the row whose tokens, prompts and responses so far, are an exact prefix of its own
prompt, whichever of the execution's rows that is; of several, the longest. The prompt tokens
between two responses are masked. Nothing is tokenised again, so a prompt that was rendered
differently starts a new row. A row holds calls of one execution, one policy and one temperature.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ltrain_transforms.samples.ragged import Integers, Ragged


@dataclass(frozen=True, slots=True)
class Turns:
    """The tokens of `n` calls; those of an execution and policy are together, in call order."""

    prompts: Ragged
    responses: Ragged
    temperatures: npt.NDArray[np.float64]
    lanes: Integers
    """Where each execution and policy begins, and where the last ends."""
    lengths: Integers
    """The length of each call's prompt and response together."""

    def __len__(self) -> int:
        return len(self.prompts)

    @classmethod
    def from_tokens(
        cls,
        prompts: Ragged,
        responses: Ragged,
        temperatures: npt.NDArray[np.float64],
        lanes: Integers,
    ) -> "Turns":
        return cls(prompts, responses, temperatures, lanes, prompts.lengths + responses.lengths)

    def lanes_to_merge(self) -> Iterator[tuple[int, int]]:
        """Yield begin and end of each lane of two or more calls."""
        for lane in np.flatnonzero(np.diff(self.lanes) > 1):
            yield int(self.lanes[lane]), int(self.lanes[lane + 1])


@dataclass(frozen=True, slots=True)
class Merges:
    """The row of each call; one entry a call in each array."""

    openers: Integers
    """The call that began its row; itself, where it begins one."""
    known: Integers
    """Tokens of its prompt that the row held already; 0 where it begins one."""
    nearest: Integers
    """Where it begins a row: the last call of the row with the longest common prefix; -1: none."""
    common: Integers
    """The number of tokens of that common prefix; the next token is the first that differs."""

    @property
    def is_opener(self) -> npt.NDArray[np.bool_]:
        """Whether each call begins a row."""
        flags: npt.NDArray[np.bool_] = self.openers == np.arange(len(self.openers))
        return flags


def merge_turns(turns: Turns) -> Merges:
    """Decide for each call whether it begins a row or joins one."""
    own = np.arange(len(turns))
    none = np.full(len(turns), -1)
    merges = Merges(own, np.zeros_like(own), none, none.copy())
    for begin, end in turns.lanes_to_merge():
        _merge_lane(turns, begin, end, merges)
    return merges


def _merge_lane(turns: Turns, begin: int, end: int, merges: Merges) -> None:
    prompts, prompt_offsets = _to_bytes(turns.prompts, begin, end)
    responses, response_offsets = _to_bytes(turns.responses, begin, end)
    rows = OpenRows()
    for index, call in enumerate(range(begin, end)):
        prompt = prompts[prompt_offsets[index] : prompt_offsets[index + 1]]
        response = responses[response_offsets[index] : response_offsets[index + 1]]
        temperature = float(turns.temperatures[call])
        row = rows.pop_prefix(prompt, temperature)
        if row is None:
            merges.nearest[call], merges.common[call] = rows.find_nearest(prompt)
            row = Row(call, call, temperature)
        else:
            merges.openers[call], merges.known[call] = row.opener, turns.lengths[row.last]
            row.last = call
        rows.insert(row, prompt + response)


def _to_bytes(lists: Ragged, begin: int, end: int) -> tuple[bytes, list[int]]:
    """Return the bytes of the lists from `begin` to `end`, and where in them each begins."""
    offsets = lists.offsets[begin : end + 1]
    values = lists.values[offsets[0] : offsets[-1]]
    return values.tobytes(), ((offsets - offsets[0]) * BYTES).tolist()


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
    """The rows of an execution that later calls may still join, searched by their tokens.

    Contexts are sorted by their bytes. So the contexts that a prompt continues, and the one with
    which it has the longest common prefix, are its neighbours: a rollout of a thousand sub-agents
    does not take a thousand squared comparisons.
    """

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
