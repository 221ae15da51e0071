"""Calls whose tokens continue each other, as one training row.

A call joins the row whose tokens, prompts and responses so far, are an exact prefix of its own
prompt, whichever of the execution's rows that is; of several, the longest. What came between is
masked. Nothing is tokenised anew, so a prompt that was rendered differently starts a row of its
own. A row holds calls of one execution, one policy and one temperature.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ltrain_transforms.open_rows import BYTES, OpenRows, Row
from ltrain_transforms.ragged import Ragged, Whole


@dataclass(frozen=True, slots=True)
class Turns:
    """The tokens of `n` calls, those of an execution and policy together, in call order."""

    prompts: Ragged
    responses: Ragged
    temperatures: npt.NDArray[np.float64]
    lanes: Whole
    """Where each execution and policy begins, and where the last ends."""

    def __len__(self) -> int:
        return len(self.prompts)

    ends: Whole
    """The length of each call's prompt and response together."""

    @classmethod
    def of(
        cls,
        prompts: Ragged,
        responses: Ragged,
        temperatures: npt.NDArray[np.float64],
        lanes: Whole,
    ) -> "Turns":
        return cls(prompts, responses, temperatures, lanes, prompts.lengths + responses.lengths)

    def of_several(self) -> Iterator[tuple[int, int]]:
        """Give the lanes of two calls and more."""
        for lane in np.flatnonzero(np.diff(self.lanes) > 1):
            yield int(self.lanes[lane]), int(self.lanes[lane + 1])


@dataclass(frozen=True, slots=True)
class Merged:
    """What became of each call."""

    opener: Whole
    """The call that began its row: itself, where it begins one."""
    known: Whole
    """How many tokens of its prompt the row held already; 0 where it begins one."""
    against: Whole
    """Where it begins a row: the last call of the row that it agrees with longest; -1: none."""
    agreed: Whole
    """With how many tokens; the next is the first that differs."""

    @property
    def begins(self) -> npt.NDArray[np.bool_]:
        begins: npt.NDArray[np.bool_] = self.opener == np.arange(len(self.opener))
        return begins


def merged(turns: Turns) -> Merged:
    """Decide for each call whether it begins a row or joins one."""
    own = np.arange(len(turns))
    none = np.full(len(turns), -1)
    found = Merged(own, np.zeros_like(own), none, none.copy())
    for start, stop in turns.of_several():
        _merge(turns, start, stop, found)
    return found


def _merge(turns: Turns, start: int, stop: int, found: Merged) -> None:
    prompts, at = _bytes(turns.prompts, start, stop)
    responses, told = _bytes(turns.responses, start, stop)
    rows = OpenRows()
    for index, call in enumerate(range(start, stop)):
        prompt, heat = prompts[at[index] : at[index + 1]], float(turns.temperatures[call])
        row = rows.take(prompt, heat)
        if row is None:
            found.against[call], found.agreed[call] = rows.nearest(prompt)
            row = Row(call, call, heat)
        else:
            found.opener[call], found.known[call] = row.opener, turns.ends[row.last]
            row.last = call
        rows.put(row, prompt + responses[told[index] : told[index + 1]])


def _bytes(lists: Ragged, start: int, stop: int) -> tuple[bytes, list[int]]:
    """Give the bytes of some of the lists, and where in them each begins and the last ends."""
    offsets = lists.offsets[start : stop + 1]
    values = lists.values[offsets[0] : offsets[-1]]
    return values.tobytes(), ((offsets - offsets[0]) * BYTES).tolist()
