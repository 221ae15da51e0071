"""Requests of an agent that wants to block the gateway: many elements in every list of every API.

A test sends them to the routes, and a benchmark to a gateway in a process of its own.
"""

from dataclasses import dataclass
from typing import Any

TEXT = {"type": "text", "text": "w"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
USER = [{"role": "user", "content": "w3"}]
BLOCK = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
ODD: dict[str, Any] = {"empty": {}, "null": None, "number": 1, "list": [[]]}
"""Elements that no list has."""


def _chat(**fields: Any) -> dict[str, Any]:
    return {"model": "policy", "messages": USER, **fields}


def _responses(**fields: Any) -> dict[str, Any]:
    return {"model": "policy", "input": "w3", **fields}


def _messages(**fields: Any) -> dict[str, Any]:
    return {"model": "policy", "messages": USER, "max_tokens": 9, **fields}


def _turn(role: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"role": role, **fields}]


CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
LISTS: dict[tuple[str, str], tuple[Any, Any]] = {
    (CHAT, "messages"): (USER[0], lambda many: _chat(messages=many)),
    (CHAT, "parts"): (TEXT, lambda many: _chat(messages=_turn("user", content=many))),
    (CHAT, "calls"): (CALL, lambda many: _chat(messages=_turn("assistant", tool_calls=many))),
    (CHAT, "tools"): (TOOL, lambda many: _chat(tools=many)),
    (CHAT, "stop"): ("s", lambda many: _chat(stop=many)),
    (RESPONSES, "items"): ({"role": "user", "content": "w"}, lambda many: _responses(input=many)),
    (RESPONSES, "calls"): (
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        lambda many: _responses(input=many),
    ),
    (RESPONSES, "parts"): (
        {"type": "input_text", "text": "w"},
        lambda many: _responses(input=_turn("user", content=many)),
    ),
    (RESPONSES, "tools"): ({"type": "function", "name": "f"}, lambda many: _responses(tools=many)),
    (MESSAGES, "messages"): (USER[0], lambda many: _messages(messages=many)),
    (MESSAGES, "parts"): (TEXT, lambda many: _messages(messages=_turn("user", content=many))),
    (MESSAGES, "texts"): (TEXT, lambda many: _messages(messages=_turn("assistant", content=many))),
    (MESSAGES, "calls"): (BLOCK, lambda many: _messages(messages=_turn("assistant", content=many))),
    (MESSAGES, "system"): (TEXT, lambda many: _messages(system=many)),
    (MESSAGES, "tools"): ({"name": "f"}, lambda many: _messages(tools=many)),
    (MESSAGES, "result"): (
        TEXT,
        lambda many: _messages(
            messages=_turn("user", content=[{"type": "tool_result", "content": many}])
        ),
    ),
}
"""A usual element of each list, and the request with a list of many, by path and name."""


@dataclass(frozen=True)
class Shape:
    """A request that can have any number of elements."""

    path: str
    name: str
    element: Any

    def body(self, count: int) -> dict[str, Any]:
        """Return the request with `count` elements."""
        body: dict[str, Any] = LISTS[self.path, self.name][1]([self.element] * count)
        return body

    def __str__(self) -> str:
        return f"{self.path.rpartition('/')[2]} {self.name} {str(self.element)[:12]}"


SHAPES = [
    Shape(path, name, element)
    for (path, name), (usual, _) in LISTS.items()
    for element in (usual, *ODD.values())
]
"""A shape for each list and element."""
