"""Parse the messages of an LLM call as turns: role and content, without ids."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from ltrain_transforms.states.values import parse_structured, to_json
from ltrain_transforms.traces import parse_json

SEPARATOR = "\x1e"
"""Separates the turns of a prompt, so that no text is found across two of them."""


class ToolRequest(NamedTuple):
    """One tool call that a message requests."""

    id: str
    name: str
    arguments: Any


class Turn(NamedTuple):
    """One message."""

    role: str
    text: str
    """All of its content: text, tool requests with their arguments, results."""
    requests: tuple[ToolRequest, ...] = ()
    results: tuple[tuple[str, str], ...] = ()
    """Tool-call id and text of each result in it."""

    @property
    def key(self) -> tuple[str, str]:
        """Role and text: equal for two requests that differ only in their ids."""
        return self[:2]


def parse_turns(messages: Any) -> list[Turn]:
    """Return one turn for each message; a message of unknown form is a turn without a role."""
    return [_turn(message) for message in messages] if isinstance(messages, list) else []


def parse_turns_json(text: str | None) -> list[Turn]:
    """Parse the JSON messages of an input or an output."""
    return parse_turns(parse_json(text))


def join_turns(turns: Iterable[Turn]) -> str:
    """Return the text of all turns, in which values are searched for."""
    return SEPARATOR.join([turn.text for turn in turns])


def _turn(message: Any) -> Turn:
    if not isinstance(message, dict):
        return Turn("", message if isinstance(message, str) else "")
    role, parts = message.get("role"), message.get("parts")
    role = role if isinstance(role, str) else ""
    if not isinstance(parts, list):
        content = message.get("content") or ""
        return Turn(role, content if isinstance(content, str) else to_json(content))
    if len(parts) == 1 and isinstance(parts[0], dict) and parts[0].get("type") == "text":
        return Turn(role, str(parts[0].get("content") or ""))
    return _turn_of_parts(role, parts)


def _turn_of_parts(role: str, parts: list[Any]) -> Turn:
    texts: list[str] = []
    requests: list[ToolRequest] = []
    results: list[tuple[str, str]] = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            texts.append(str(part.get("content") or ""))
        elif kind == "tool_call":
            request = _request(part)
            requests.append(request)
            texts += [request.name, to_json(request.arguments)]
        elif kind == "tool_call_response":
            result = part.get("response", part.get("result"))
            text = result if isinstance(result, str) else to_json(result)
            results.append((str(part.get("id")), text))
            texts.append(text)
        else:
            texts.append(to_json(part))
    return Turn(role, "\n".join(texts), tuple(requests), tuple(results))


def _request(part: dict[str, Any]) -> ToolRequest:
    arguments = part.get("arguments")
    value = parse_structured(arguments) if isinstance(arguments, str) else arguments
    return ToolRequest(str(part.get("id")), str(part.get("name")), value)
