"""The messages of a rollout's calls for reading: what a call's history repeats is named, not told.

An agent sends its whole history with every call. Messages that the call before began with, too, are
counted, and the call where they stand is named.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ltrain_instrument.terminal import visible
from ltrain_transforms.show.tree import Step
from ltrain_transforms.show.words import lines, listed, plain

LONGEST = 20_000
"""Characters of a text that a page holds; it says how many more there are."""


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    text: str
    more: int
    """Characters that are left out."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What went into a call and came out of it."""

    repeated: int
    """Messages that it began with like the call before."""
    repeats: Step | None
    """That call."""
    given: tuple[Message, ...]
    answered: tuple[Message, ...]


def conversations(steps: Iterable[Step]) -> dict[int, Conversation]:
    """Give the conversation of each call by its `seq`; agents and nodes have none."""
    found: dict[int, Conversation] = {}
    before: tuple[Step, list[dict[str, Any]]] | None = None
    for step in sorted(steps, key=lambda one: int(one.call["seq"])):
        call = step.call
        if call["kind"] in ("agent", "node"):
            continue
        history = listed(call["input"]) if call["kind"] == "llm" else None
        if history is None:
            given = _text("input", call["arguments"] or call["input"])
            answered = _messages(listed(call["output"]) if call["kind"] == "llm" else None)
            answered = answered or _text("output", call["result"] or call["output"])
            found[call["seq"]] = Conversation(0, None, given, answered)
            continue
        same = _alike(before[1], history) if before else 0
        answered = _messages(listed(call["output"])) or _text("output", call["output"])
        repeats = before[0] if before and same else None
        found[call["seq"]] = Conversation(same, repeats, _messages(history[same:]), answered)
        before = (step, history)
    return found


def _alike(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> int:
    """Count the messages that both begin with."""
    same = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        same += 1
    return same


def _messages(messages: list[dict[str, Any]] | None) -> tuple[Message, ...]:
    return tuple(excerpt(plain(one.get("role", "?")), lines(one)) for one in messages or [])


def _text(role: str, text: str | None) -> tuple[Message, ...]:
    return (excerpt(role, text),) if text else ()


def excerpt(role: str, text: str) -> Message:
    """Give as much of a text as a page holds."""
    return Message(visible(role), visible(text[:LONGEST]), max(len(text) - LONGEST, 0))
