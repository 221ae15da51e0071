"""The messages of the calls of a rollout, without the history that each call repeats.

An agent sends its whole history with every call. The messages that a call has in common with the
start of the previous call are counted and replaced by a link to that call.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ltrain_instrument.machine import visible
from ltrain_transforms.show.display_text import message_text
from ltrain_transforms.show.tree import TreeCall
from ltrain_transforms.traces import Message, read_messages

MAX_CHARACTERS = 20_000
"""Characters of a text that a page shows, with a note on how many more there are."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The beginning of a message."""

    role: str
    text: str
    more: int
    """Number of characters that are left out."""


@dataclass(frozen=True, slots=True)
class CallMessages:
    """The input and the output of a call."""

    repeated: int
    """Number of leading messages that it has in common with the previous call."""
    repeats: TreeCall | None
    """The previous call."""
    inputs: tuple[Excerpt, ...]
    outputs: tuple[Excerpt, ...]


def messages_by_call(steps: Iterable[TreeCall]) -> dict[int, CallMessages]:
    """Return the conversation of each call by its `seq`; agents and nodes have none."""
    conversations: dict[int, CallMessages] = {}
    previous: tuple[TreeCall, list[Message]] | None = None
    for step in sorted(steps, key=lambda step: int(step.call["seq"])):
        call = step.call
        if call["kind"] in ("agent", "node"):
            continue
        history = read_messages(call["input"]) if call["kind"] == "llm" else []
        if not history:
            inputs = _text("input", call["arguments"] or call["input"])
            outputs = _excerpts(read_messages(call["output"]) if call["kind"] == "llm" else [])
            outputs = outputs or _text("output", call["result"] or call["output"])
            conversations[call["seq"]] = CallMessages(0, None, inputs, outputs)
            continue
        common = _common_prefix(previous[1], history) if previous else 0
        outputs = _excerpts(read_messages(call["output"])) or _text("output", call["output"])
        repeats = previous[0] if previous and common else None
        conversations[call["seq"]] = CallMessages(
            common, repeats, _excerpts(history[common:]), outputs
        )
        previous = (step, history)
    return conversations


def _common_prefix(left: list[Message], right: list[Message]) -> int:
    """Count the leading messages that both lists have in common."""
    count = 0
    for mine, other in zip(left, right, strict=False):
        if mine != other:
            break
        count += 1
    return count


def _excerpts(messages: list[Message]) -> tuple[Excerpt, ...]:
    return tuple(excerpt(message.role or "?", message_text(message)) for message in messages)


def _text(role: str, text: str | None) -> tuple[Excerpt, ...]:
    return (excerpt(role, text),) if text else ()


def excerpt(role: str, text: str) -> Excerpt:
    """Return the first `MAX_CHARACTERS` of a text of a message."""
    return Excerpt(
        visible(role), visible(text[:MAX_CHARACTERS]), max(len(text) - MAX_CHARACTERS, 0)
    )
