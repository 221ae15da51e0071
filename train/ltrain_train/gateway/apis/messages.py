"""`/v1/messages` of Anthropic's API, converted to chat completions."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import Field

from ltrain_train.gateway.apis.api import ClientCall
from ltrain_train.gateway.apis.body import (
    Body,
    ChatBody,
    Count,
    Items,
    JsonObject,
    Strict,
    bad_request,
    parse_body,
    validate_body,
)
from ltrain_train.gateway.apis.messages_answer import MessagesAnswer
from ltrain_train.gateway.apis.request_fields import (
    MESSAGE_RULES,
    require_supported,
    rules_by_field,
)
from ltrain_train.gateway.apis.request_limits import RequestLimits

OWN_FIELDS = rules_by_field(MESSAGE_RULES)
TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class _Source(Strict):
    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


class _Block(Strict):
    type: str
    text: str | None = None
    thinking: str | None = None
    source: _Source | None = None
    id: str | None = None
    name: str | None = None
    input: JsonObject | None = None
    tool_use_id: str | None = None
    content: str | Items[JsonObject] | None = None


class _Message(Strict):
    role: str
    content: str | Items[_Block]


class _Tool(Strict):
    type: str | None = None
    name: str
    description: str | None = None
    input_schema: JsonObject | None = None


class _Format(Strict):
    type: str
    schema_: JsonObject = Field(alias="schema")


class _OutputConfig(Strict):
    format: _Format | None = None


class _ToolChoice(Strict):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class MessagesBody(Body):
    """The fields of a message."""

    api: ClassVar[str] = "Anthropic's messages"
    input_field: ClassVar[str] = "messages"

    messages: Items[_Message] = Field(min_length=1)
    max_tokens: Count
    system: str | Items[_Block] | None = None
    stop_sequences: Items[str] | None = None
    tools: Items[_Tool] | None = None
    tool_choice: _ToolChoice | None = None
    output_config: _OutputConfig | None = None
    output_format: _Format | None = None
    """The name of `output_config.format` in older clients."""


class CountBody(MessagesBody):
    """The fields of a request to count the tokens of a message's prompt."""

    max_tokens: Count | None = None  # type: ignore[assignment]


def parse_count(raw: bytes, limits: RequestLimits) -> dict[str, Any]:
    """Parse a request to count tokens, and return the chat completion with this prompt."""
    chat = _chat_body(parse_body(CountBody, raw, limits))
    validate_body(ChatBody, chat)
    return chat


class MessagesApi:
    """Anthropic's Messages API, with the client's own tools only."""

    path = "/v1/messages"

    def parse(self, raw: bytes, limits: RequestLimits) -> ClientCall:
        """Parse a request and convert it to a chat completion's."""
        requested = parse_body(MessagesBody, raw, limits)
        require_supported(requested, OWN_FIELDS)
        chat = _chat_body(requested)
        validate_body(ChatBody, chat)
        return ClientCall("chat", chat, MessagesAnswer, requested)


MESSAGES = MessagesApi()


def _chat_body(requested: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a chat completion; fields of vLLM's API are kept."""
    chat = {name: value for name, value in requested.items() if name not in OWN_FIELDS}
    chat["messages"] = list(_messages(requested))
    choice = requested.get("tool_choice") or {}
    chat |= {
        "max_tokens": requested.get("max_tokens"),
        "stop": requested.get("stop_sequences") or None,
        "tools": [_tool(tool) for tool in requested.get("tools") or ()] or None,
        "tool_choice": _tool_choice(choice) if choice else None,
        "parallel_tool_calls": False if choice.get("disable_parallel_tool_use") else None,
    }
    format_ = (requested.get("output_config") or {}).get("format") or requested.get("output_format")
    if format_:
        chat["response_format"] = _response_format(format_)
    if requested.get("stream"):
        chat["stream_options"] = {"include_usage": True}
    if chat["messages"][-1]["role"] == "assistant":  # the answer continues this text
        chat |= {"continue_final_message": True, "add_generation_prompt": False}
    return {name: value for name, value in chat.items() if value is not None}


def _messages(requested: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    system = requested.get("system")
    if system:
        texts = [system] if isinstance(system, str) else [_text(each, "system") for each in system]
        yield {"role": "system", "content": "\n\n".join(texts)}
    for number, message in enumerate(requested["messages"]):
        content, place = message["content"], f"messages.{number}"
        if isinstance(content, str):
            yield {"role": message["role"], "content": content}
        elif message["role"] == "assistant":
            yield _assistant_message(content, place)
        else:
            yield from _user_messages(message["role"], content, place)


def _assistant_message(blocks: list[Mapping[str, Any]], place: str) -> dict[str, Any]:
    """Return the blocks of a turn as one message, as the model wrote it."""
    message: dict[str, Any] = {"role": "assistant"}
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
        elif kind != "redacted_thinking":
            raise _unknown_block(kind, place)
    return message | {name: "".join(parts) for name, parts in texts.items()}


def _user_messages(
    role: str, blocks: list[Mapping[str, Any]], place: str
) -> Iterator[dict[str, Any]]:
    """Yield a message for each result of a tool, and one for the other blocks between them."""
    parts: list[dict[str, Any]] = []
    for block in blocks:
        if block["type"] != "tool_result":
            parts.append(_part(block, place))
            continue
        if parts:
            yield {"role": role, "content": _joined(parts)}
            parts = []
        content = block.get("content") or ""
        if not isinstance(content, str):
            content = _joined([_part(each, place) for each in content])
        yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content}
    if parts:
        yield {"role": role, "content": _joined(parts)}


def _joined(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _part(block: Mapping[str, Any], place: str) -> dict[str, Any]:
    if block.get("type") != "image":
        return {"type": "text", "text": _text(block, place)}
    source = block.get("source") or {}
    url = source.get("url") or f"data:{source.get('media_type')};base64,{source.get('data')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _text(block: Mapping[str, Any], place: str) -> str:
    if block.get("type") != "text":
        raise _unknown_block(block.get("type"), place)
    return str(block.get("text") or "")


def _unknown_block(kind: object, place: str) -> Exception:
    return bad_request(
        f"'{place}' of the request has a block of type '{kind}', which a chat completion has not. "
        "Send text, images, thinking, and uses and results of your own tools."
    )


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        raise bad_request(
            f"A tool of the request has the type '{tool['type']}', which only Anthropic's servers "
            "run. Send tools with an 'input_schema'."
        )
    fields = {"name": "name", "description": "description", "input_schema": "parameters"}
    function = {new: tool[old] for old, new in fields.items() if tool.get(old) is not None}
    return {"type": "function", "function": function}


def _response_format(format_: Mapping[str, Any]) -> dict[str, Any]:
    if format_["type"] != "json_schema":
        raise bad_request(
            f"The format of the request's output has the type '{format_['type']}'. Send one of "
            "type 'json_schema'."
        )
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": format_["schema"], "strict": True},
    }


def _tool_choice(choice: Mapping[str, Any]) -> str | dict[str, Any]:
    if choice["type"] == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if choice["type"] not in TOOL_CHOICES:
        raise bad_request(
            f"'tool_choice' of the request has the type '{choice['type']}'. Send one of type "
            "'auto', 'any', 'none' or 'tool'."
        )
    return TOOL_CHOICES[choice["type"]]
