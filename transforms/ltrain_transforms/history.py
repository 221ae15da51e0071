"""Message histories in a form that compares, whoever wrote them down."""

import json
import re
from collections.abc import Sequence
from typing import Any

from ltrain_transforms.untrusted import parsed

Message = dict[str, Any]
"""As the gen_ai conventions have it: `{"role", "parts": [{"type", ...}]}`."""

Said = tuple[tuple[str, str, tuple[str, ...]], ...]
"""Of each message the role, the text, and tool calls, results and other parts."""

THINKING = ("reasoning", "thinking")
"""Types of parts that hold thinking."""

CLOSED = "</think>"


def listed(messages: str | None) -> list[Message]:
    """Read messages from JSON; none where it holds none."""
    given = parsed(messages)
    return [one for one in given if isinstance(one, dict)] if isinstance(given, list) else []


def parts_of(message: Message) -> list[dict[str, Any]]:
    """Give a message's parts; text that stands there as it is, is one."""
    parts, text = message.get("parts"), message.get("content")
    plain = [{"type": "text", "content": text}] if isinstance(text, str) and text else []
    given = parts if isinstance(parts, list) and parts else plain
    return [part for part in given if isinstance(part, dict)]


def said(messages: Sequence[Message], *, thinking: bool) -> Said:
    """Put messages into the form that compares, with their thinking or without."""
    return tuple(_message(message, thinking) for message in messages)


def goes_on(later: Said, earlier: Said) -> bool:
    """Say whether `later` is `earlier` and more."""
    return len(later) > len(earlier) and later[: len(earlier)] == earlier


def in_common(one: Sequence[Message], other: Sequence[Message]) -> int:
    """Count the messages with which both histories begin, their thinking aside."""
    pairs = enumerate(zip(one, other, strict=False))
    differ = (
        place
        for place, (mine, its) in pairs
        if mine != its and _message(mine, False) != _message(its, False)
    )
    return next(differ, min(len(one), len(other)))


def is_answer(message: Message) -> bool:
    return message.get("role") in ("assistant", "ai", "model")


def share(one: Sequence[Message], other: Sequence[Message]) -> bool:
    """Say whether two histories have a message in common that is not the system's."""
    said_there = set(said(other, thinking=False))
    mine = (_message(message, False) for message in one if message.get("role") != "system")
    return any(message in said_there for message in mine)


def has_thinking(message: Message) -> bool:
    """Say whether an answer holds thinking, as a part of its own or in its text."""
    return any(
        part.get("type") in THINKING or CLOSED in str(part.get("content") or "")
        for part in parts_of(message)
    )


def _message(message: Message, thinking: bool) -> tuple[str, str, tuple[str, ...]]:
    parts = parts_of(message)
    text = "".join(str(part.get("content") or "") for part in parts if part.get("type") == "text")
    if not thinking:
        parts = [part for part in parts if part.get("type") not in THINKING]
        # the template may have opened it in the prompt, so the answer may only close it
        text = re.sub(rf"^.*{CLOSED}", "", text, flags=re.DOTALL) if CLOSED in text else text
    others = tuple(_part(part) for part in parts if part.get("type") != "text")
    return str(message.get("role")), text.strip(), others


def _part(part: dict[str, Any]) -> str:
    """Write a part so that it compares: a tool's arguments may be an object or its JSON."""
    fields = {name: value for name, value in part.items() if value is not None}
    if isinstance(fields.get("arguments"), str):
        value = parsed(fields["arguments"])
        fields["arguments"] = value.strip() if isinstance(value, str) else value
    return json.dumps(fields, sort_keys=True)
