"""The messages of the calls of a rollout, without the history that each call repeats.

An agent sends its whole history with every call. The messages that a call has in common with the
start of the previous call are counted and replaced by a link to that call.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ltrain_instrument.terminal import visible
from ltrain_transforms.show.display_text import message_text, parse_messages, to_text
from ltrain_transforms.show.tree import Step

MAX_CHARACTERS = 20_000
"""Characters of a text that a page shows, with a note on how many more there are."""


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    text: str
    more: int
    """Number of characters that are left out."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The input and the output of a call."""

    repeated: int
    """Number of leading messages that it has in common with the previous call."""
    repeats: Step | None
    """The previous call."""
    inputs: tuple[Message, ...]
    outputs: tuple[Message, ...]


def read_messages(steps: Iterable[Step]) -> dict[int, Conversation]:
    """Return the conversation of each call by its `seq`; agents and nodes have none."""
    conversations: dict[int, Conversation] = {}
    previous: tuple[Step, list[dict[str, Any]]] | None = None
    for step in sorted(steps, key=lambda step: int(step.call["seq"])):
        call = step.call
        if call["kind"] in ("agent", "node"):
            continue
        history = parse_messages(call["input"]) if call["kind"] == "llm" else None
        if history is None:
            inputs = _text("input", call["arguments"] or call["input"])
            outputs = _messages(parse_messages(call["output"]) if call["kind"] == "llm" else None)
            outputs = outputs or _text("output", call["result"] or call["output"])
            conversations[call["seq"]] = Conversation(0, None, inputs, outputs)
            continue
        common = _common_prefix(previous[1], history) if previous else 0
        outputs = _messages(parse_messages(call["output"])) or _text("output", call["output"])
        repeats = previous[0] if previous and common else None
        conversations[call["seq"]] = Conversation(
            common, repeats, _messages(history[common:]), outputs
        )
        previous = (step, history)
    return conversations


def _common_prefix(left: list[dict[str, Any]], right: list[dict[str, Any]]) -> int:
    """Count the leading messages that both lists have in common."""
    count = 0
    for mine, other in zip(left, right, strict=False):
        if mine != other:
            break
        count += 1
    return count


def _messages(messages: list[dict[str, Any]] | None) -> tuple[Message, ...]:
    return tuple(
        excerpt(to_text(message.get("role", "?")), message_text(message))
        for message in messages or []
    )


def _text(role: str, text: str | None) -> tuple[Message, ...]:
    return (excerpt(role, text),) if text else ()


def excerpt(role: str, text: str) -> Message:
    """Return the first `MAX_CHARACTERS` of a text as a message."""
    return Message(
        visible(role), visible(text[:MAX_CHARACTERS]), max(len(text) - MAX_CHARACTERS, 0)
    )
