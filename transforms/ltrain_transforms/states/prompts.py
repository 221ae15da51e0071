"""Parse the messages of an LLM call as turns: role and content, without ids."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from ltrain_transforms.states.values import parse_structured, to_json
from ltrain_transforms.traces import REQUEST, RESULT, TEXT, Message, MessagePart, read_messages

SEPARATOR = "\x1e"
"""Separates the turns of a prompt, so that no text is found across two of them."""


class TurnRequest(NamedTuple):
    """One tool call that a turn requests; "None" is the id or name of a request without one."""

    id: str
    name: str
    arguments: Any


class Turn(NamedTuple):
    """One message."""

    role: str
    text: str
    """All of its content: text, tool requests with their arguments, results."""
    requests: tuple[TurnRequest, ...] = ()
    results: tuple[tuple[str, str], ...] = ()
    """Tool-call id and text of each result in it."""

    @property
    def key(self) -> tuple[str, str]:
        """Role and text: equal for two requests that differ only in their ids."""
        return self[:2]


def parse_turns(messages: Any) -> list[Turn]:
    """Return one turn for each message of a JSON list or of its text."""
    return [_turn(message) for message in read_messages(messages)]


def join_turns(turns: Iterable[Turn]) -> str:
    """Return the text of all turns, in which values are searched."""
    return SEPARATOR.join([turn.text for turn in turns])


def _turn(message: Message) -> Turn:
    role, parts = message.role, message.parts
    if len(parts) == 1 and parts[0].type == TEXT:
        return Turn(role, parts[0].text)
    return _turn_of_parts(role, parts)


def _turn_of_parts(role: str, parts: Iterable[MessagePart]) -> Turn:
    texts: list[str] = []
    requests: list[TurnRequest] = []
    results: list[tuple[str, str]] = []
    for part in parts:
        kind = part.type
        if kind == TEXT:
            texts.append(part.text)
        elif kind == REQUEST:
            id, name, arguments = part.request
            request = TurnRequest(str(id), str(name), parse_structured(arguments))
            requests.append(request)
            texts += [request.name, to_json(request.arguments)]
        elif kind == RESULT:
            id, value = part.result
            text = value if isinstance(value, str) else to_json(value)
            results.append((str(id), text))
            texts.append(text)
        else:
            texts.append(to_json(part.fields))
    return Turn(role, "\n".join(texts), tuple(requests), tuple(results))
