"""Compare message histories, whichever instrumentation wrote them."""

import json
import re
from collections.abc import Sequence
from typing import Any

from ltrain_transforms.traces.untrusted import parse_json

Message = dict[str, Any]
"""A message of the gen_ai conventions: `{"role", "parts": [{"type", ...}]}`."""

ComparableHistory = tuple[tuple[str, str, tuple[str, ...]], ...]
"""For each message: the role, the text, and the other parts (tool calls, results)."""

THINKING = ("reasoning", "thinking")
"""Types of parts that hold reasoning."""

THINKING_END = "</think>"


def parse_messages(messages: str | None) -> list[Message]:
    """Parse the messages of a JSON list; return none where the text is no list."""
    parsed = parse_json(messages)
    return [one for one in parsed if isinstance(one, dict)] if isinstance(parsed, list) else []


def message_parts(message: Message) -> list[dict[str, Any]]:
    """Return a message's parts; plain text in `content` is one part."""
    parts, text = message.get("parts"), message.get("content")
    plain = [{"type": "text", "content": text}] if isinstance(text, str) and text else []
    parts = parts if isinstance(parts, list) and parts else plain
    return [part for part in parts if isinstance(part, dict)]


def comparable_history(messages: Sequence[Message], *, thinking: bool) -> ComparableHistory:
    """Return messages in a comparable form, with their reasoning or without."""
    return tuple(_comparable(message, thinking) for message in messages)


def continues(later: ComparableHistory, earlier: ComparableHistory) -> bool:
    """Return whether `later` is `earlier` and more messages."""
    return len(later) > len(earlier) and later[: len(earlier)] == earlier


def common_prefix(one: Sequence[Message], other: Sequence[Message]) -> int:
    """Return how many messages both histories begin with; reasoning does not count."""
    pairs = enumerate(zip(one, other, strict=False))
    differ = (
        index
        for index, (left, right) in pairs
        if left != right and _comparable(left, False) != _comparable(right, False)
    )
    return next(differ, min(len(one), len(other)))


def is_assistant(message: Message) -> bool:
    return message.get("role") in ("assistant", "ai", "model")


def share_message(one: Sequence[Message], other: Sequence[Message]) -> bool:
    """Return whether two histories share a message other than the system's."""
    others = set(comparable_history(other, thinking=False))
    own = (_comparable(message, False) for message in one if message.get("role") != "system")
    return any(message in others for message in own)


def has_thinking(message: Message) -> bool:
    """Return whether an answer holds reasoning, as a part of its own or in its text."""
    return any(
        part.get("type") in THINKING or THINKING_END in str(part.get("content") or "")
        for part in message_parts(message)
    )


def _comparable(message: Message, thinking: bool) -> tuple[str, str, tuple[str, ...]]:
    parts = message_parts(message)
    text = "".join(str(part.get("content") or "") for part in parts if part.get("type") == "text")
    if not thinking:
        parts = [part for part in parts if part.get("type") not in THINKING]
        # the chat template may open the tag in the prompt, so the answer may only close it
        text = (
            re.sub(rf"^.*{THINKING_END}", "", text, flags=re.DOTALL)
            if THINKING_END in text
            else text
        )
    others = tuple(_part(part) for part in parts if part.get("type") != "text")
    return str(message.get("role")), text.strip(), others


def _part(part: dict[str, Any]) -> str:
    """Return a part in a comparable form: a tool's arguments may be an object or its JSON."""
    fields = {name: value for name, value in part.items() if value is not None}
    if isinstance(fields.get("arguments"), str):
        value = parse_json(fields["arguments"])
        fields["arguments"] = value.strip() if isinstance(value, str) else value
    return json.dumps(fields, sort_keys=True)
