"""The histories of an execution: which prompt goes on from which, and who rewrote one.

A prompt that begins with an earlier one of the same agent and node goes on from it, whatever its
system messages. One that does not may be a history rewritten. It is when a turn of the earlier
prompt, an answer or a tool's result, is gone and the two are still one conversation: they begin
alike, share a later turn, or are one agent's. The LLM call whose text stands where the history was,
and which read what is gone, did it. Where there is no such call the agent's own code did: a window
that slides, a result that is cleared.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

from ltrain_transforms.states.prompts import BETWEEN, Turn, joined, turns
from ltrain_transforms.states.values import SHORTEST
from ltrain_transforms.states.variables import Found
from ltrain_transforms.untrusted import parsed

HELD = 16
"""Histories of one agent and node that are kept for comparison; the oldest are forgotten."""
SPOKEN = 32
"""Texts that are looked for in a rewritten history, the last ones."""
LAST = 32
"""Characters of a prompt that are compared first."""
MANY = 1 << 62
SUMMARY = 16
"""Characters below which a text that occurs in a prompt is no summary of anything."""
SLACK = 2_000_000
"""Nanoseconds by which a call may seem to outlast its successor's start: see `grouping.SLACK`."""

Lane = tuple[str | None, ...]
"""Kind of call, agent and node."""


class Rewriting(NamedTuple):
    """A history that was rewritten between two calls."""

    by: str | None
    """The LLM call whose text replaces what is gone; None: the agent's code."""
    gone: int
    """Turns that are no longer there."""
    kept: int
    """Turns that still are."""


@dataclass(slots=True)
class Prompt:
    """What one LLM call was shown."""

    fresh: list[Turn]
    """The turns that the prompt it goes on from did not have."""
    text: str
    ids: frozenset[str]
    """Tool calls whose results are in it."""
    digest: str | None
    found: Found
    """Values that were looked for in it."""
    rank: int
    """LLM calls of the same agent and node that ran before, one after the other."""
    goes_on: bool
    rewriting: Rewriting | None = None


@dataclass(slots=True)
class _History:
    raw: str
    """JSON of the messages."""
    length: int
    """Its length without the closing bracket."""
    turns: list[Turn]
    dialogue: list[tuple[str, str]]
    """Role and text of its turns but the system's."""
    text: str
    ids: frozenset[str]
    hash: Any
    found: Found
    invocation: str | None
    rank: int = 0
    reply: set[tuple[str, str]] = field(default_factory=set)
    """What its last call answered."""


class _Spoken(NamedTuple):
    call_id: str
    end: int
    text: str
    saw: str


@dataclass(slots=True)
class Contexts:
    """The histories of one execution, and what its LLM calls said."""

    hashes: bool = True
    """Whether prompts get a digest; an execution with a graph's state needs none."""
    lanes: defaultdict[Lane, list[_History]] = field(default_factory=lambda: defaultdict(list))
    spoken: list[_Spoken] = field(default_factory=list)
    ends: defaultdict[Lane, list[int]] = field(default_factory=lambda: defaultdict(list))
    """At k the earliest end of a chain of k + 1 calls."""

    def enter(self, lane: Lane, start: int, end: int, raw: str, invocation: str | None) -> Prompt:
        """Read the prompt of a call; calls come in the order of their starts.

        Args:
            lane: the call's agent and node.
            raw: its messages, JSON.
            invocation: the agent's run that the call is in.
        """
        histories = self.lanes[lane]
        before = _continued(histories, raw)
        if before is not None:
            prompt, history = _longer(before, raw)
        else:
            prompt, history = _afresh(raw, invocation, self.hashes)
            before = self._compare(histories, history, prompt, start)
        if before is not None:
            histories.remove(before)
        after = before.rank + 1 if before is not None and _proves(prompt) else 0
        history.invocation = invocation
        history.rank = prompt.rank = self.rank(lane, start, end, after)
        histories.append(history)
        del histories[:-HELD]
        return prompt

    def reply(self, lane: Lane, said: Sequence[Turn]) -> None:
        """Note the answer to the prompt that was entered last."""
        self.lanes[lane][-1].reply = {turn.said for turn in said}

    def say(self, call_id: str, end: int, text: str, saw: str) -> None:
        """Note a text without requests for tools: it may be found in a later prompt."""
        if len(text) >= SUMMARY:
            self.spoken.append(_Spoken(call_id, end, text, saw))
            del self.spoken[:-SPOKEN]

    def rank(self, lane: Lane, start: int, end: int, after: int = 0) -> int:
        """Count the longest chain of calls that were over; calls in parallel share a rank.

        `after` is what a prompt proves, whatever the clocks say.
        """
        ends = self.ends[lane]
        rank, after = bisect_right(ends, start + SLACK), min(after, len(ends))
        if after > rank:
            ends[:after] = [min(one, start) for one in ends[:after]]
            rank = after
        end = max(start, end, ends[rank - 1] if rank else end)
        if rank == len(ends):
            ends.append(end)
        else:
            ends[rank] = min(ends[rank], end)
        return rank

    def _compare(
        self, histories: list[_History], new: _History, prompt: Prompt, start: int
    ) -> _History | None:
        """Find the history that `new` is in other words: other instructions, or rewritten."""
        for old in reversed(histories):
            length = len(old.dialogue)
            if length and new.dialogue[:length] == old.dialogue:
                prompt.goes_on = True
                prompt.fresh = [turn for turn in new.turns if turn.role != "system"][length:]
                return old
        for old in reversed(histories):
            prompt.rewriting = self._rewritten(old, new, start)
            if prompt.rewriting is not None:
                return old
        return None

    def _rewritten(self, old: _History, new: _History, start: int) -> Rewriting | None:
        before, after = old.dialogue, new.dialogue
        there = set(after)
        gone = [said for said in before if said not in there]
        if not any(self._is_turn(said) for said in gone):
            return None
        head = _alike(before, after)
        known = old.reply.union(before)
        kept = [index for index in range(head, len(after)) if after[index] in known]
        rewriting = (len(gone), len(before) - len(gone))
        if not (head or kept or _one_conversation(old, new)):
            return None
        until = kept[0] if kept else len(after)
        placed = [*_new_system(old.turns, new.turns), *after[head:until]]
        by = self._summary(placed, gone, start)
        if by is not None:
            return Rewriting(by, *rewriting)
        # without a later turn that is still there it may as well be another branch
        return Rewriting(None, *rewriting) if kept else None

    def _is_turn(self, said: tuple[str, str]) -> bool:
        """An answer or a result; in a group chat another agent's answer has the user's role."""
        role, text = said
        return role in ("assistant", "tool") or any(each.text == text for each in self.spoken)

    def _summary(
        self,
        placed: Sequence[tuple[str, str]],
        gone: Sequence[tuple[str, str]],
        start: int,
    ) -> str | None:
        """Find the call whose text is among `placed`, and which had read what is gone."""
        texts = [text for _, text in gone if len(text) >= SHORTEST]
        for each in reversed(self.spoken):
            said = any(each.text in text for _, text in placed)
            over = each.end <= start + SLACK
            if said and over and any(text in each.saw for text in texts):
                return each.call_id
        return None


def _proves(prompt: Prompt) -> bool:
    """Say whether a prompt holds what the call before it answered; a mere retry does not."""
    if prompt.rewriting is not None:
        return True
    return any(turn.role == "assistant" for turn in prompt.fresh)


def _continued(histories: Sequence[_History], raw: str) -> _History | None:
    for history in reversed(histories):
        length, before = history.length, history.raw
        # the last characters tell most others apart, and cost no copy of the whole
        if (
            raw[length : length + 1] in (",", "]")
            and raw[length - LAST : length] == before[length - LAST : length]
            and raw.startswith(before[:length])
        ):
            return history
    return None


def _longer(old: _History, raw: str) -> tuple[Prompt, _History]:
    """Read only what was added since."""
    added = raw[old.length :].lstrip(", ")
    fresh = turns(parsed(f"[{added}")) if added != "]" else []
    hashed, ids = old.hash and old.hash.copy(), old.ids | _answered(fresh)
    if hashed:
        hashed.update(_hashable(fresh))
    text = f"{old.text}{BETWEEN}{joined(fresh)}" if fresh else old.text
    every, dialogue = old.turns + fresh, old.dialogue + _dialogue(fresh)
    history = _History(
        raw, _length(raw), every, dialogue, text, ids, hashed, old.found, old.invocation
    )
    return Prompt(fresh, text, ids, _hex(hashed), old.found, 0, goes_on=True), history


def _afresh(raw: str, invocation: str | None, hashes: bool) -> tuple[Prompt, _History]:
    every = turns(parsed(raw))
    text, ids, dialogue = joined(every), _answered(every), _dialogue(every)
    hashed, found = sha256(_hashable(every)) if hashes else None, Found()
    history = _History(raw, _length(raw), every, dialogue, text, ids, hashed, found, invocation)
    return Prompt(every, text, ids, _hex(hashed), found, 0, goes_on=False), history


def _hex(hashed: Any) -> str | None:
    return hashed.hexdigest()[:16] if hashed else None


def _answered(spoken: Sequence[Turn]) -> frozenset[str]:
    return frozenset([id for turn in spoken for id, _ in turn.results])


def _hashable(spoken: Sequence[Turn]) -> bytes:
    text = "".join([f"{turn.role}\x1f{turn.text}{BETWEEN}" for turn in spoken])
    return text.encode()


def _length(raw: str) -> int:
    """Give the length of messages up to the last one's end; of none what no prompt reaches."""
    end = len(raw.rstrip()) - 1
    if end < 2 or raw[end] != "]":
        return MANY
    while raw[end - 1].isspace():
        end -= 1
    return end


def _dialogue(spoken: Sequence[Turn]) -> list[tuple[str, str]]:
    return [turn[:2] for turn in spoken if turn.role != "system"]


def _new_system(old: Sequence[Turn], new: Sequence[Turn]) -> list[tuple[str, str]]:
    known = {turn.text for turn in old if turn.role == "system"}
    return [turn[:2] for turn in new if turn.role == "system" and turn.text not in known]


def _alike(before: Sequence[tuple[str, str]], after: Sequence[tuple[str, str]]) -> int:
    pairs = zip(before, after, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(before), len(after)))


def _one_conversation(old: _History, new: _History) -> bool:
    if old.invocation is not None or new.invocation is not None:
        return old.invocation == new.invocation
    instructions = [turn.text for turn in old.turns if turn.role == "system"]
    return bool(instructions) and not _new_system(old.turns, new.turns)
