"""The message histories of an execution: which prompt continues which, and who rewrote a history.

A prompt continues an earlier prompt of the same agent and node when it begins with the same
messages; system messages do not count.

Otherwise the history may have been rewritten (context management). It was, if both hold:

1. A turn of the earlier prompt, an answer or a tool's result, is missing.
2. Both prompts are one conversation: they begin alike, share a later turn, or belong to one agent
   invocation.

The author is the LLM call whose text now stands in place of the missing turns and whose own prompt
held one of them. Without such a call the agent's code rewrote the history: it moved a sliding
window, or it cleared a result.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

from ltrain_transforms.states.prompts import SEPARATOR, Turn, join_turns, parse_turns
from ltrain_transforms.states.values import MIN_TEXT
from ltrain_transforms.states.variables import Lookups

MAX_HISTORIES = 16
"""Histories of one component that are kept for comparison; the oldest are forgotten."""
MAX_TEXTS = 32
"""Texts of LLM calls that are searched for in a rewritten history; the oldest are forgotten."""
TAIL = 32
"""Characters at the end of a prompt that are compared first."""
UNREACHABLE = 1 << 62
"""A length that no prompt reaches."""
MIN_SUMMARY = 16
"""Characters; a shorter text may occur in a prompt by chance, so it is not a summary."""
SLACK = 2_000_000
"""Nanoseconds by which a call may seem to outlast its successor's start: see `call.SLACK`."""

Component = tuple[str | None, ...]
"""Kind of call, agent and node."""

TurnKey = tuple[str, str]
"""Role and text of a turn: equal keys are equal turns."""


class Rewrite(NamedTuple):
    """A history that was rewritten between two calls."""

    author: str | None
    """The LLM call whose text replaces the removed turns; None: the agent's code."""
    removed: int
    """Turns of the earlier prompt that are missing."""
    remaining: int
    """Turns of the earlier prompt that are still there."""


@dataclass(slots=True)
class Prompt:
    """The prompt of one LLM call, compared with the earlier prompts of its component."""

    new_turns: list[Turn]
    """The turns that the prompt it continues did not have."""
    text: str
    result_ids: frozenset[str]
    """Ids of the tool calls whose results it holds."""
    digest: str | None
    lookups: Lookups
    """The values that were searched for in it."""
    turn_index: int
    """LLM calls of the same agent and node that ran before, one after the other."""
    continues: bool
    rewrite: Rewrite | None = None


@dataclass(slots=True)
class _History:
    raw: str
    """JSON of the messages."""
    length: int
    """Length of `raw` without the closing bracket."""
    turns: list[Turn]
    dialogue: list[TurnKey]
    """All turns but the system's."""
    text: str
    result_ids: frozenset[str]
    hash: Any
    lookups: Lookups
    invocation: str | None
    turn_index: int = 0
    reply: set[TurnKey] = field(default_factory=set)
    """The answer of its last call."""


class _Statement(NamedTuple):
    """The text that one LLM call answered."""

    call_id: str
    end: int
    text: str
    prompt: str


@dataclass(slots=True)
class Histories:
    """The message histories of one execution. Calls are added in order of their start times."""

    hashes: bool = True
    """Whether prompts get a digest; an execution with a graph's state needs none."""
    by_component: defaultdict[Component, list[_History]] = field(
        default_factory=lambda: defaultdict(list)
    )
    statements: list[_Statement] = field(default_factory=list)
    chain_ends: defaultdict[Component, list[int]] = field(default_factory=lambda: defaultdict(list))
    """At index k: the earliest end of any chain of k + 1 calls, in nanoseconds."""

    def add_prompt(
        self, component: Component, start: int, end: int, raw: str, invocation: str | None
    ) -> Prompt:
        """Parse the prompt of a call and compare it with the component's earlier prompts.

        Args:
            raw: the messages, JSON.
            invocation: the agent invocation that encloses the call.
        """
        histories = self.by_component[component]
        previous = _continued_history(histories, raw)
        if previous is not None:
            prompt, history = _extend(previous, raw)
        else:
            prompt, history = _start_history(raw, invocation, self.hashes)
            previous = self._compare(histories, history, prompt, start)
        if previous is not None:
            histories.remove(previous)
        minimum = previous.turn_index + 1 if previous is not None and _has_answer(prompt) else 0
        history.invocation = invocation
        history.turn_index = prompt.turn_index = self.turn_index(component, start, end, minimum)
        histories.append(history)
        del histories[:-MAX_HISTORIES]
        return prompt

    def add_reply(self, component: Component, reply: Sequence[Turn]) -> None:
        """Store the answer to the component's last prompt."""
        self.by_component[component][-1].reply = {turn.key for turn in reply}

    def add_statement(self, call_id: str, end: int, text: str, prompt: str) -> None:
        """Store an answer without tool requests: a later prompt may hold it as a summary."""
        if len(text) >= MIN_SUMMARY:
            self.statements.append(_Statement(call_id, end, text, prompt))
            del self.statements[:-MAX_TEXTS]

    def turn_index(self, component: Component, start: int, end: int, minimum: int = 0) -> int:
        """Return the length of the longest chain of calls that ended before this one started.

        Parallel calls have the same index.

        Args:
            minimum: what the messages prove, whatever the clocks say.
        """
        ends = self.chain_ends[component]
        index, minimum = bisect_right(ends, start + SLACK), min(minimum, len(ends))
        if minimum > index:
            ends[:minimum] = [min(one, start) for one in ends[:minimum]]
            index = minimum
        end = max(start, end, ends[index - 1] if index else end)
        if index == len(ends):
            ends.append(end)
        else:
            ends[index] = min(ends[index], end)
        return index

    def _compare(
        self, histories: list[_History], new: _History, prompt: Prompt, start: int
    ) -> _History | None:
        """Return the history that `new` continues with other instructions, or rewrites."""
        for old in reversed(histories):
            length = len(old.dialogue)
            if length and new.dialogue[:length] == old.dialogue:
                prompt.continues = True
                prompt.new_turns = [turn for turn in new.turns if turn.role != "system"][length:]
                return old
        for old in reversed(histories):
            prompt.rewrite = self._rewrite(old, new, start)
            if prompt.rewrite is not None:
                return old
        return None

    def _rewrite(self, old: _History, new: _History, start: int) -> Rewrite | None:
        """Return how `new` rewrites `old`; None where it is another conversation."""
        before, after = old.dialogue, new.dialogue
        present = set(after)
        removed = [turn for turn in before if turn not in present]
        if not any(self._is_answer_or_result(turn) for turn in removed):
            return None
        head = _common_prefix(before, after)
        known = old.reply.union(before)
        later = [index for index in range(head, len(after)) if after[index] in known]
        if not (head or later or _same_conversation(old, new)):
            return None
        counts = (len(removed), len(before) - len(removed))
        until = later[0] if later else len(after)
        inserted = [*_new_instructions(old.turns, new.turns), *after[head:until]]
        author = self._summary_author(inserted, removed, start)
        if author is not None:
            return Rewrite(author, *counts)
        # without a shared later turn `new` may as well be another branch
        return Rewrite(None, *counts) if later else None

    def _is_answer_or_result(self, turn: TurnKey) -> bool:
        # in a group chat another agent's answer has the user's role
        role, text = turn
        return role in ("assistant", "tool") or any(one.text == text for one in self.statements)

    def _summary_author(
        self, inserted: Sequence[TurnKey], removed: Sequence[TurnKey], start: int
    ) -> str | None:
        """Return the last call whose text was inserted and whose prompt held a removed turn."""
        removed_texts = [text for _, text in removed if len(text) >= MIN_TEXT]
        for statement in reversed(self.statements):
            if (
                any(statement.text in text for _, text in inserted)
                and statement.end <= start + SLACK
                and any(text in statement.prompt for text in removed_texts)
            ):
                return statement.call_id
        return None


def _has_answer(prompt: Prompt) -> bool:
    """Return whether a prompt holds the previous call's answer; a retry does not."""
    if prompt.rewrite is not None:
        return True
    return any(turn.role == "assistant" for turn in prompt.new_turns)


def _continued_history(histories: Sequence[_History], raw: str) -> _History | None:
    for history in reversed(histories):
        length, before = history.length, history.raw
        # comparing the tail first rejects most others without a copy of the whole text
        if (
            raw[length : length + 1] in (",", "]")
            and raw[length - TAIL : length] == before[length - TAIL : length]
            and raw.startswith(before[:length])
        ):
            return history
    return None


def _extend(old: _History, raw: str) -> tuple[Prompt, _History]:
    """Parse only the messages that `raw` adds to `old`."""
    added = raw[old.length :].lstrip(", ")
    new_turns = parse_turns(f"[{added}") if added != "]" else []
    hashed, ids = old.hash and old.hash.copy(), old.result_ids | _result_ids(new_turns)
    if hashed:
        hashed.update(_hash_input(new_turns))
    text = f"{old.text}{SEPARATOR}{join_turns(new_turns)}" if new_turns else old.text
    turns, dialogue = old.turns + new_turns, old.dialogue + _dialogue(new_turns)
    history = _History(
        raw, _length(raw), turns, dialogue, text, ids, hashed, old.lookups, old.invocation
    )
    return Prompt(new_turns, text, ids, _hex(hashed), old.lookups, 0, continues=True), history


def _start_history(raw: str, invocation: str | None, hashes: bool) -> tuple[Prompt, _History]:
    turns = parse_turns(raw)
    text, ids, dialogue = join_turns(turns), _result_ids(turns), _dialogue(turns)
    hashed, lookups = sha256(_hash_input(turns)) if hashes else None, Lookups()
    history = _History(raw, _length(raw), turns, dialogue, text, ids, hashed, lookups, invocation)
    return Prompt(turns, text, ids, _hex(hashed), lookups, 0, continues=False), history


def _hex(hashed: Any) -> str | None:
    return hashed.hexdigest()[:16] if hashed else None


def _result_ids(turns: Sequence[Turn]) -> frozenset[str]:
    return frozenset([id for turn in turns for id, _ in turn.results])


def _hash_input(turns: Sequence[Turn]) -> bytes:
    text = "".join([f"{turn.role}\x1f{turn.text}{SEPARATOR}" for turn in turns])
    return text.encode()


def _length(raw: str) -> int:
    """Return the length up to the last message's end; `UNREACHABLE` where there is none."""
    end = len(raw.rstrip()) - 1
    if end < 2 or raw[end] != "]":
        return UNREACHABLE
    while raw[end - 1].isspace():
        end -= 1
    return end


def _dialogue(turns: Sequence[Turn]) -> list[TurnKey]:
    return [turn[:2] for turn in turns if turn.role != "system"]


def _new_instructions(old: Sequence[Turn], new: Sequence[Turn]) -> list[TurnKey]:
    known = {turn.text for turn in old if turn.role == "system"}
    return [turn[:2] for turn in new if turn.role == "system" and turn.text not in known]


def _common_prefix(before: Sequence[TurnKey], after: Sequence[TurnKey]) -> int:
    pairs = zip(before, after, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(before), len(after)))


def _same_conversation(old: _History, new: _History) -> bool:
    if old.invocation is not None or new.invocation is not None:
        return old.invocation == new.invocation
    instructions = [turn.text for turn in old.turns if turn.role == "system"]
    return bool(instructions) and not _new_instructions(old.turns, new.turns)
