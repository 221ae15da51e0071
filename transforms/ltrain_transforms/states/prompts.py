"""Messages of an LLM call as turns: who says what, without the ids that differ between equals."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from ltrain_transforms.states.values import dump, structured
from ltrain_transforms.untrusted import parsed

BETWEEN = "\x1e"
"""Stands between the turns of a prompt, so that no text is found across two of them."""


class Request(NamedTuple):
    """One tool that a message asks for."""

    id: str
    name: str
    arguments: Any


class Turn(NamedTuple):
    role: str
    text: str
    """All that it says: text, tools asked for with their arguments, results."""
    requests: tuple[Request, ...] = ()
    results: tuple[tuple[str, str], ...] = ()
    """Tool-call id and text of each result in it."""

    @property
    def said(self) -> tuple[str, str]:
        """What compares: two calls of one tool differ in their ids only."""
        return self[:2]


def turns(messages: Any) -> list[Turn]:
    """Read messages; one that has no shape is a turn without role."""
    return [_turn(message) for message in messages] if isinstance(messages, list) else []


def read(text: str | None) -> list[Turn]:
    """Read the messages of an input or an output, JSON."""
    return turns(parsed(text))


def joined(spoken: Iterable[Turn]) -> str:
    """Give the text in which values are looked for."""
    return BETWEEN.join([turn.text for turn in spoken])


def _turn(message: Any) -> Turn:
    if not isinstance(message, dict):
        return Turn("", message if isinstance(message, str) else "")
    role, parts = message.get("role"), message.get("parts")
    role = role if isinstance(role, str) else ""
    if not isinstance(parts, list):
        content = message.get("content") or ""
        return Turn(role, content if isinstance(content, str) else dump(content))
    if len(parts) == 1 and isinstance(parts[0], dict) and parts[0].get("type") == "text":
        return Turn(role, str(parts[0].get("content") or ""))
    return _of_parts(role, parts)


def _of_parts(role: str, parts: list[Any]) -> Turn:
    texts: list[str] = []
    requests: list[Request] = []
    results: list[tuple[str, str]] = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            texts.append(str(part.get("content") or ""))
        elif kind == "tool_call":
            asked = _request(part)
            requests.append(asked)
            texts += [asked.name, dump(asked.arguments)]
        elif kind == "tool_call_response":
            result = part.get("response", part.get("result"))
            results.append(
                (str(part.get("id")), result if isinstance(result, str) else dump(result))
            )
            texts.append(results[-1][1])
        else:
            texts.append(dump(part))
    return Turn(role, "\n".join(texts), tuple(requests), tuple(results))


def _request(part: dict[str, Any]) -> Request:
    arguments = part.get("arguments")
    value = structured(arguments) if isinstance(arguments, str) else arguments
    return Request(str(part.get("id")), str(part.get("name")), value)
