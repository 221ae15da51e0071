"""The input of a responses request as messages of a chat completion.

A turn of the assistant, which the API splits into items, becomes one message again: the prompt then
begins with what the model wrote.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from typing import Any

from ltrain_train.gateway.apis.body import JsonObject, bad_request
from ltrain_train.gateway.apis.omissions import Omissions
from ltrain_train.gateway.apis.responses_calls import (
    APPLY_PATCH,
    BY_ITEM,
    BY_OUTPUT,
    CUSTOM,
    FUNCTION,
    SHELL,
    TOOL_SEARCH,
    CallKind,
    find_kind,
)
from ltrain_train.gateway.apis.responses_tools import ResponsesTools

SERVER_ITEMS = frozenset(
    {
        *("web_search_call", "file_search_call", "image_generation_call", "code_interpreter_call"),
        *("computer_call", "computer_call_output", "mcp_list_tools", "mcp_call"),
        *("mcp_approval_request", "mcp_approval_response", "tool_search_call"),
        "tool_search_output",
    }
)
"""Items of tools that only OpenAI's servers run; they are left out."""
SUMMARIES = frozenset({"compaction", "compaction_summary", "context_compaction"})
"""Items in the place of a long history, which OpenAI's servers encrypt."""
KEPT_REASONING = "ltrain.reasoning."
"""The beginning of `encrypted_content` with reasoning of this gateway, whose text follows in
base64. Clients that send no reasoning in clear text return it."""

Item = Mapping[str, Any]


def keep_reasoning(text: str) -> str:
    """Return the `encrypted_content` of a reasoning item."""
    return KEPT_REASONING + b64encode(text.encode(errors="replace")).decode()


class InputMessages:
    """The messages of one request."""

    def __init__(self, tools: ResponsesTools, omitted: Omissions) -> None:
        self._tools, self._omitted = tools, omitted

    def read(self, items: str | list[Item]) -> Iterator[JsonObject]:
        """Yield the messages of the items."""
        if isinstance(items, str):
            yield {"role": "user", "content": items}
            return
        turn: JsonObject = {}
        """The assistant's message whose items are being read."""
        for number, item in enumerate(items):
            message = self._message(item, number)
            if message is None:
                continue
            if turn and (message["role"] != "assistant" or _begins_turn(turn, message)):
                yield turn
                turn = {}
            if message["role"] == "assistant":
                turn = _join(turn, message)
            else:
                yield message
        if turn:
            yield turn

    def _message(self, item: Item, number: int) -> JsonObject | None:
        """Return an item as a message, or as a part of the assistant's; None if it is empty."""
        kind = item.get("type", "message")
        if kind == "message":
            role = item.get("role") or "user"
            role = "system" if role == "developer" else role
            return {"role": role, "content": _content(item.get("content"), number)}
        if call := find_kind(BY_ITEM, item):
            return self._call(item, call)
        if call := find_kind(BY_OUTPUT, item):
            id_ = item.get("call_id") or item.get("id")
            content = self._output(item, call, number)
            return {"role": "tool", "tool_call_id": id_, "content": content}
        if kind == "reasoning":
            text = self._reasoning(item)
            return {"role": "assistant", "reasoning": text} if text else None
        if kind in SUMMARIES:
            raise bad_request(
                f"'input.{number}' of the request is a '{kind}', which only the server that made "
                "it can read. Send the messages that it replaces, or a summary as text."
            )
        if kind in SERVER_ITEMS:
            self._omitted.items[kind] += 1
        elif kind != "additional_tools":  # these are among the tools
            raise bad_request(
                f"'input.{number}' of the request has the type '{kind}', which a chat completion "
                "has not. Send messages, calls of tools and their outputs, and reasoning."
            )
        return None

    def _call(self, item: Item, kind: CallKind) -> JsonObject:
        name = item.get("name") if kind in (FUNCTION, CUSTOM) else None
        function = {
            "name": self._tools.name(kind, name, item.get("namespace")),
            "arguments": kind.read(item),
        }
        id_ = item.get("call_id") or item.get("id")
        return {
            "role": "assistant",
            "tool_calls": [{"id": id_, "type": "function", "function": function}],
        }

    def _output(self, item: Item, kind: CallKind, number: int) -> str | list[JsonObject]:
        """Return the output of a call; that of a built-in tool of the client is JSON."""
        output = item.get("output")
        if kind is TOOL_SEARCH:
            return json.dumps({"tools": self._tools.found(item.get("tools") or ())})
        if kind is APPLY_PATCH:
            fields = {"status": item.get("status"), "output": output}
            return json.dumps({name: value for name, value in fields.items() if value is not None})
        if kind is SHELL or isinstance(output, dict):
            return json.dumps(output, ensure_ascii=False)
        return _content(output, number)

    def _reasoning(self, item: Item) -> str:
        """Return the text of a reasoning item; one that another server encrypted is left out."""
        text = "".join(part.get("text") or "" for part in item.get("content") or ())
        sealed = item.get("encrypted_content") or ""
        if text or not sealed:
            return text
        try:
            if sealed.startswith(KEPT_REASONING):
                return b64decode(sealed.removeprefix(KEPT_REASONING), validate=True).decode()
        except ValueError:
            pass  # cut or changed by the client
        self._omitted.items["encrypted reasoning"] += 1
        return ""


def _begins_turn(turn: Item, message: Item) -> bool:
    """Return whether it is of another turn: in one, reasoning, text and calls follow in order."""
    if "tool_calls" in message:
        return False
    return "tool_calls" in turn or "content" in turn or ("reasoning" in message and bool(turn))


def _join(turn: JsonObject, message: JsonObject) -> JsonObject:
    """Return the turn with another item of it; its list of calls grows in place."""
    calls = turn.get("tool_calls", [])
    calls += message.get("tool_calls", ())
    joined = {**turn, **message}
    return {**joined, "tool_calls": calls} if calls else joined


def _content(content: str | list[Item] | None, number: int) -> str | list[JsonObject]:
    if content is None or isinstance(content, str):
        return content or ""
    parts = [_part(part, number) for part in content]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    return texts[0] if len(texts) == len(parts) == 1 else parts


def plain_text(content: str | list[Item]) -> str | None:
    """Return the text of a message's content; None if it has other parts."""
    if isinstance(content, str):
        return content
    texts = [part.get("text") for part in content]
    return "\n\n".join(texts) if all(isinstance(each, str) for each in texts) else None  # type: ignore[arg-type]


def _part(part: Item, number: int) -> JsonObject:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": part.get("text") or ""}
    if kind == "refusal":
        return {"type": "text", "text": part.get("refusal") or ""}
    if kind == "input_image" and part.get("image_url"):
        image = {"url": part["image_url"], "detail": part.get("detail") or "auto"}
        return {"type": "image_url", "image_url": image}
    raise bad_request(
        f"'input.{number}' of the request has a part of type '{kind}', which a chat completion has "
        "not. Send text, and images by URL."
    )
