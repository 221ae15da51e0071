"""The calls of an attempt that a page has: all of a small tree, or some blocks of a large one.

A page with the bodies of 10,000 calls takes a browser ten seconds. Of a large tree it has only the
rows near the call that the reader wants; its script adds and removes other rows in blocks, and adds
the body of a call when the reader opens it. Rows and bodies come from one template each, whatever
the size of the tree.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ltrain_transforms.show.pages.conversation import Conversation
from ltrain_transforms.show.rollout import Extent
from ltrain_transforms.show.tree import Attempt, RolloutTree

WHOLE = 300
"""Maximum calls of a tree whose page has all rows and bodies, which works without a script."""
BLOCK = 25
"""Rows of a block."""
FIRST_BLOCKS = 2
"""Blocks in the page of a large tree."""

CallName = tuple[int, int]
"""The number of an attempt on its page, from 1, and the `seq` of a call."""


class CallMacros(Protocol):
    """The macros of `call.html.j2`."""

    row: Callable[..., str]
    body: Callable[..., str]


@dataclass(frozen=True, slots=True)
class CallWindow:
    """The calls of an attempt that are on a page, by their positions in the tree."""

    attempt: Attempt
    number: int
    """The number of the attempt on the page, from 1."""
    is_whole: bool
    """Whether the page has all calls with their bodies."""
    wanted: int | None
    """The call that the page opens."""
    conversation: Conversation
    block: int = BLOCK

    @property
    def starts(self) -> Sequence[int]:
        """The first positions of the blocks in the page."""
        start = 0 if self.wanted is None else self.wanted // BLOCK * BLOCK
        return self.all_starts[start // BLOCK :][:FIRST_BLOCKS]

    @property
    def all_starts(self) -> range:
        """The first positions of all blocks."""
        return range(0, len(self.attempt.steps), BLOCK)

    def positions(self, start: int) -> range:
        """Return the positions of a block."""
        return range(start, min(start + BLOCK, len(self.attempt.steps)))

    @property
    def order(self) -> list[int]:
        """The `seq` of each call of the tree; empty where it is the position."""
        order = [int(step.call["seq"]) for step in self.attempt.steps]
        return [] if order == list(range(len(order))) else order

    def rows(self, macros: CallMacros, start: int) -> str:
        """Return the rows of a block."""
        row, attempt, number = macros.row, self.attempt, self.number
        return "".join(row(attempt, number, position) for position in self.positions(start))

    def content(self, macros: CallMacros, start: int) -> dict[str, Any]:
        """Return the rows of a block and the bodies of its calls, for a page without a server."""
        steps = [self.attempt.steps[position] for position in self.positions(start)]
        attempt, number, talk = self.attempt, self.number, self.conversation
        bodies = [macros.body(attempt, step, number, talk) for step in steps]
        return {"rows": self.rows(macros, start), "bodies": bodies}


def call_window(
    shown: RolloutTree, attempt: Attempt, number: int, wanted: CallName | None = None
) -> CallWindow:
    """Return the calls of an attempt that its page has.

    Args:
        wanted: the call that the page opens, if it has it.
    """
    is_own = wanted is not None and wanted[0] == number
    position = attempt.position(wanted[1]) if wanted is not None and is_own else None
    is_small = shown.extent != Extent.FIRST and shown.size <= WHOLE
    is_whole = is_small or not attempt.steps
    return CallWindow(attempt, number, is_whole, position, Conversation(attempt.steps))
