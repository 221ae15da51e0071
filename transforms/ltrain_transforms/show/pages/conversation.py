"""The messages of the calls of a rollout, without the history that each call repeats.

An agent sends its whole history with every call. The messages that a call has in common with the
start of the previous call are counted and replaced by a link to that call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ltrain_instrument.machine import visible
from ltrain_transforms.show.pages.excerpt import Excerpt, excerpt, part_excerpt
from ltrain_transforms.show.tree import TreeCall
from ltrain_transforms.traces import Message, MessagePart, read_messages


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """A message of a call, as a page shows it."""

    role: str
    parts: tuple[Excerpt, ...]


def is_plain(message: ShownMessage) -> bool:
    """Whether a message is one text: no tool call, and no image."""
    return [(part.label, part.image) for part in message.parts] == [("", "")]


@dataclass(frozen=True, slots=True)
class CallMessages:
    """The input and the output of a call."""

    repeated: int
    """Number of leading messages that it has in common with the previous call."""
    repeats: TreeCall | None
    """The previous call."""
    inputs: tuple[ShownMessage, ...]
    outputs: tuple[ShownMessage, ...]


class Conversation:
    """The messages of the calls of an attempt, read one call at a time."""

    def __init__(self, steps: Sequence[TreeCall]) -> None:
        self._unsorted = steps
        self._last: tuple[str, list[Message]] | None = None

    @cached_property
    def _steps(self) -> list[TreeCall]:
        return sorted(self._unsorted, key=lambda step: int(step.call["seq"]))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {step.call["call_id"]: at for at, step in enumerate(self._steps)}

    def messages(self, step: TreeCall) -> CallMessages | None:
        """Return the messages of a call; agents and nodes have none."""
        call = step.call
        if call["kind"] in ("agent", "node"):
            return None
        history = self._history(step)
        if not history:
            inputs = _text("input", call["arguments"] or call["input"])
            outputs = _shown(read_messages(call["output"]) if call["kind"] == "llm" else [])
            outputs = outputs or _text("output", call["result"] or call["output"])
            return CallMessages(0, None, inputs, outputs)
        previous, common = self._previous(step), 0
        if previous is not None:
            common = _common_prefix(self._history(previous), history)
        outputs = _shown(read_messages(call["output"])) or _text("output", call["output"])
        self._last = (call["call_id"], history)  # the next call compares its history with this one
        return CallMessages(common, previous if common else None, _shown(history[common:]), outputs)

    def _previous(self, step: TreeCall) -> TreeCall | None:
        """Return the call before this one that has a history."""
        for at in range(self._places[step.call["call_id"]] - 1, -1, -1):
            if self._history(self._steps[at]):
                return self._steps[at]
        return None

    def _history(self, step: TreeCall) -> list[Message]:
        call = step.call
        if self._last is not None and self._last[0] == call["call_id"]:
            return self._last[1]
        return read_messages(call["input"]) if call["kind"] == "llm" else []


def _common_prefix(left: list[Message], right: list[Message]) -> int:
    """Count the leading messages that both lists have in common."""
    count = 0
    for mine, other in zip(left, right, strict=False):
        if mine != other:
            break
        count += 1
    return count


def _shown(messages: list[Message]) -> tuple[ShownMessage, ...]:
    return tuple(
        ShownMessage(visible(message.role or "?"), tuple(map(part_excerpt, _parts(message))))
        for message in messages
    )


def _parts(message: Message) -> list[MessagePart]:
    """Return the parts of a message; its fields as one part where it has none."""
    if message.parts or "parts" in message.fields:
        return message.parts
    fields = {name: value for name, value in message.fields.items() if name != "role"}
    return [MessagePart("", fields)]


def _text(role: str, text: str | None) -> tuple[ShownMessage, ...]:
    return (ShownMessage(role, (excerpt("", text),)),) if text else ()
