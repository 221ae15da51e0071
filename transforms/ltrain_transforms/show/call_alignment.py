"""Two rollouts call by call: which calls they have in common, and how the outputs differ.

Calls are matched in their order by agent, kind and name. What is compared is bounded, and the
reader is told what was left out.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum

from ltrain_instrument.quantity import quantity
from ltrain_transforms.show.group import MemberCall

MAX_CALLS = 300
"""Calls of each rollout that are aligned."""
MAX_DIFFERENCES = 40
"""Outputs whose words are compared; the comparison of two long ones takes some milliseconds."""
CONTEXT = 120
"""Characters of equal text that are kept at each end, between two differences."""
WORD = re.compile(r"\S+\s*|\s+")


class Change(StrEnum):
    SAME = "same"
    CHANGED = "changed"
    REMOVED = "removed"
    """Only the first rollout has it."""
    ADDED = "added"
    """Only the second rollout has it."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """A part of an output that both have, or only one of them."""

    change: Change
    text: str


@dataclass(frozen=True, slots=True)
class AlignedCall:
    change: Change
    first: MemberCall | None
    second: MemberCall | None
    parts: tuple[TextPart, ...] = ()
    """How the output changed; empty if it did not, or if too many did."""


@dataclass(frozen=True, slots=True)
class Alignment:
    calls: tuple[AlignedCall, ...]
    left_out: int
    """Calls after the first `MAX_CALLS` of the longer rollout."""

    def count(self, change: Change) -> int:
        """Return the number of calls with a change."""
        return sum(call.change is change for call in self.calls)

    @property
    def summary(self) -> str:
        """The number of calls by change, as text."""
        counts = ((self.count(change), change) for change in Change)
        return ", ".join(f"{count:,} {change}" for count, change in counts if count) or "no call"


def align_calls(first: Sequence[MemberCall], second: Sequence[MemberCall]) -> Alignment:
    """Align the calls of two rollouts."""
    own, other = first[:MAX_CALLS], second[:MAX_CALLS]
    calls = list[AlignedCall]()
    differences = 0
    for a, b in _pairs(own, other):
        change = _change(a, b)
        parts: tuple[TextPart, ...] = ()
        if a is not None and b is not None and a.text != b.text and differences < MAX_DIFFERENCES:
            parts, differences = compare_texts(a.text, b.text), differences + 1
        calls.append(AlignedCall(change, a, b, parts))
    longest = max(len(first), len(second))
    return Alignment(tuple(calls), max(longest - MAX_CALLS, 0))


def _pairs(
    first: Sequence[MemberCall], second: Sequence[MemberCall]
) -> Iterator[tuple[MemberCall | None, MemberCall | None]]:
    own, other = ([call.label for call in calls] for calls in (first, second))
    for tag, a, a_end, b, b_end in SequenceMatcher(None, own, other, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from zip(first[a:a_end], second[b:b_end], strict=True)
        else:
            yield from ((call, None) for call in first[a:a_end])
            yield from ((None, call) for call in second[b:b_end])


def _change(a: MemberCall | None, b: MemberCall | None) -> Change:
    if a is None:
        return Change.ADDED
    if b is None:
        return Change.REMOVED
    return Change.SAME if a.choice == b.choice else Change.CHANGED


def compare_texts(first: str, second: str) -> tuple[TextPart, ...]:
    """Return the parts of two texts, compared by words."""
    own, other = WORD.findall(first), WORD.findall(second)
    parts = list[TextPart]()
    for tag, a, a_end, b, b_end in SequenceMatcher(None, own, other).get_opcodes():
        if tag == "equal":
            parts.append(TextPart(Change.SAME, shorten_middle("".join(own[a:a_end]))))
            continue
        if a < a_end:
            parts.append(TextPart(Change.REMOVED, "".join(own[a:a_end])))
        if b < b_end:
            parts.append(TextPart(Change.ADDED, "".join(other[b:b_end])))
    return tuple(parts)


def shorten_middle(text: str) -> str:
    """Return a text without its middle, if it is long."""
    left_out = len(text) - 2 * CONTEXT
    if left_out <= 0:
        return text
    return f"{text[:CONTEXT]} … {quantity(left_out, 'equal character')} … {text[-CONTEXT:]}"
