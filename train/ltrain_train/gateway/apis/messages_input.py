"""The conversation of Anthropic's messages as messages of a chat completion."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ltrain_train.gateway.apis.body import JsonObject, bad_request
from ltrain_train.gateway.apis.omissions import Omissions

SERVER_BLOCKS = frozenset(
    {
        *("server_tool_use", "web_search_tool_result", "web_fetch_tool_result"),
        *("code_execution_tool_result", "bash_code_execution_tool_result"),
        *("text_editor_code_execution_tool_result", "tool_search_tool_result"),
        *("mcp_tool_use", "mcp_tool_result", "mcp_tool_listing", "advisor_tool_result"),
        *("redacted_thinking", "browser_state"),
    }
)
"""Blocks of tools that only Anthropic's servers run, and encrypted thinking; they are left out."""

Block = Mapping[str, Any]


class BlockMessages:
    """The messages of one request."""

    def __init__(self, omitted: Omissions) -> None:
        self._omitted = omitted

    def read(self, requested: Mapping[str, Any]) -> Iterator[JsonObject]:
        """Yield the messages of a request, that of the system first."""
        system = requested.get("system")
        if system:
            texts = (
                [system] if isinstance(system, str) else [_text(each, "system") for each in system]
            )
            yield {"role": "system", "content": "\n\n".join(texts)}
        for number, message in enumerate(requested["messages"]):
            content, place = message["content"], f"messages.{number}"
            if isinstance(content, str):
                yield {"role": message["role"], "content": content}
                continue
            blocks = [block for block in content if not self._omits(block)]
            if message["role"] == "assistant":
                yield from [_assistant_message(blocks, place)] if blocks or not content else ()
            else:
                yield from self._user_messages(message["role"], blocks, place)

    def _omits(self, block: Block) -> bool:
        """Return whether a block is left out, and count it then."""
        if block.get("type") not in SERVER_BLOCKS:
            return False
        self._omitted.items[block["type"]] += 1
        return True

    def _user_messages(self, role: str, blocks: list[Block], place: str) -> Iterator[JsonObject]:
        """Yield a message for each result of a tool, and one for the other blocks between them."""
        parts: list[JsonObject] = []
        for block in blocks:
            if block["type"] != "tool_result":
                parts.append(_part(block, place))
                continue
            if parts:
                yield {"role": role, "content": _joined(parts)}
                parts = []
            content = block.get("content") or ""
            if isinstance(content, list):
                content = _joined([_part(each, place) for each in content if not self._omits(each)])
            elif isinstance(content, dict):
                raise bad_request(
                    f"'{place}' of the request has a tool_result with an object. Send text."
                )
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content}
        if parts:
            yield {"role": role, "content": _joined(parts)}


def _assistant_message(blocks: list[Block], place: str) -> JsonObject:
    """Return the blocks of a turn as one message, as the model wrote it."""
    message: JsonObject = {"role": "assistant"}
    texts: dict[str, list[str]] = {}
    for block in blocks:
        kind = block["type"]
        if kind == "text":
            texts.setdefault("content", []).append(block.get("text") or "")
        elif kind == "thinking":
            texts.setdefault("reasoning", []).append(block.get("thinking") or "")
        elif kind == "tool_use":
            arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
            function = {"name": block.get("name"), "arguments": arguments}
            call = {"id": block.get("id"), "type": "function", "function": function}
            message.setdefault("tool_calls", []).append(call)
        else:
            raise _unknown_block(kind, place)
    return message | {name: "".join(parts) for name, parts in texts.items()}


def _joined(parts: list[JsonObject]) -> str | list[JsonObject]:
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _part(block: Block, place: str) -> JsonObject:
    kind, source = block.get("type"), block.get("source")
    if kind == "image" and isinstance(source, dict) and (url := _image_url(source)):
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "text", "text": _text(block, place)}


def _image_url(source: Mapping[str, Any]) -> str | None:
    if source.get("data") is None:
        return source.get("url")
    return f"data:{source.get('media_type')};base64,{source['data']}"


def _text(block: Block, place: str) -> str:
    """Return the text of a block of text, a document, a result of a search, or a tool's name."""
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text") or "")
    if kind == "tool_reference":
        return str(block.get("tool_name") or "")
    head = [block.get("title"), block.get("context")]
    source = block.get("source")
    if kind == "search_result":
        head, content = [block.get("title"), source], block.get("content")
    elif kind == "document" and isinstance(source, dict) and source.get("type") in DOCUMENTS:
        content = source.get(DOCUMENTS[source["type"]])
    else:
        raise _unknown_block(kind, place)
    texts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    body = "\n".join(_text(each, place) for each in texts)
    return "\n\n".join(str(each) for each in (*head, body) if each)


DOCUMENTS = {"text": "data", "content": "content"}
"""Types of a document's source that are text, and the field with the text."""


def _unknown_block(kind: object, place: str) -> Exception:
    return bad_request(
        f"'{place}' of the request has a block of type '{kind}', which a chat completion has not. "
        "Send text, images, documents of text, thinking, and uses and results of your own tools."
    )
