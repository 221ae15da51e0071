"""Compare message histories, whichever instrumentation wrote them."""

import json
import re
from collections.abc import Iterable, Sequence

from ltrain_transforms.traces.messages import TEXT, THINKING, Message, MessagePart

ComparableMessage = tuple[str, str, tuple[str, ...]]
"""The role, the text, and the other parts (tool calls, results) as JSON."""

ComparableHistory = tuple[ComparableMessage, ...]

THINKING_END = "</think>"


def comparable_history(messages: Iterable[Message], *, thinking: bool) -> ComparableHistory:
    """Return messages in a comparable form, with their reasoning or without."""
    return tuple(_comparable(message, thinking) for message in messages)


def continues(later: ComparableHistory, earlier: ComparableHistory) -> bool:
    """Return whether `later` is `earlier` and more messages."""
    return len(later) > len(earlier) and later[: len(earlier)] == earlier


def common_prefix(one: Sequence[Message], other: Sequence[Message]) -> int:
    """Count the messages that both histories share at their start; reasoning does not count."""
    pairs = enumerate(zip(one, other, strict=False))
    differ = (
        index
        for index, (left, right) in pairs
        if left != right and _comparable(left, False) != _comparable(right, False)
    )
    return next(differ, min(len(one), len(other)))


def share_message(one: Sequence[Message], other: Sequence[Message]) -> bool:
    """Return whether two histories share a message other than the system's."""
    others = set(comparable_history(other, thinking=False))
    own = (_comparable(message, False) for message in one if message.role != "system")
    return any(message in others for message in own)


def has_thinking(message: Message) -> bool:
    """Return whether an answer holds reasoning, as a part of its own or in its text."""
    return any(part.type in THINKING or THINKING_END in part.text for part in message.parts)


def _comparable(message: Message, thinking: bool) -> ComparableMessage:
    parts = message.parts
    text = "".join([part.text for part in parts if part.type == TEXT])
    if not thinking:
        parts = [part for part in parts if part.type not in THINKING]
        # the chat template may open the tag in the prompt, so the answer may only close it
        text = (
            re.sub(rf"^.*{THINKING_END}", "", text, flags=re.DOTALL)
            if THINKING_END in text
            else text
        )
    others = tuple(_part(part) for part in parts if part.type != TEXT)
    return message.role, text.strip(), others


def _part(part: MessagePart) -> str:
    """Return a part in a comparable form: a tool's arguments may be an object or its JSON."""
    fields = {name: value for name, value in part.fields.items() if value is not None}
    if isinstance(fields.get("arguments"), str):
        value = part.request.parsed_arguments
        fields["arguments"] = value.strip() if isinstance(value, str) else value
    return json.dumps(fields, sort_keys=True)
