"""`/v1/messages` of Anthropic's API, converted to chat completions."""

from collections.abc import Mapping
from typing import Any, ClassVar

import orjson
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
from ltrain_train.gateway.apis.messages_input import BlockMessages
from ltrain_train.gateway.apis.messages_tools import SERVER_TOOLS, functions
from ltrain_train.gateway.apis.omissions import Omissions
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
    content: str | Items["_Block"] | None = None


class _Block(Strict):
    type: str
    text: str | None = None
    thinking: str | None = None
    source: _Source | str | None = None
    """That of an image or a document, or the address of a result of a search."""
    title: str | None = None
    context: str | None = None
    id: str | None = None
    name: str | None = None
    input: JsonObject | None = None
    tool_use_id: str | None = None
    content: str | Items["_Block"] | JsonObject | None = None


class _Message(Strict):
    role: str
    content: str | Items[_Block]


class _Tool(Strict):
    type: str | None = None
    name: str | None = None
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


class MessagesApi:
    """Anthropic's Messages API, with the tools that a client runs."""

    path = "/v1/messages"

    def parse(self, raw: bytes, limits: RequestLimits, model: str = "") -> ClientCall:
        """Parse a request and convert it to a chat completion's."""
        requested = parse_body(MessagesBody, raw, limits)
        require_supported(requested, OWN_FIELDS)
        omitted = Omissions(SERVER_TOOLS.provider)
        chat = _chat_body(requested, omitted)
        validate_body(ChatBody, chat)
        return ClientCall("chat", chat, MessagesAnswer, requested, omitted)


class MessagesCount:
    """The number of tokens of a message's prompt."""

    path = f"{MessagesApi.path}/count_tokens"

    def parse(self, raw: bytes, limits: RequestLimits, model: str = "") -> JsonObject:
        """Parse a request, and return the chat completion with this prompt."""
        omitted = Omissions(SERVER_TOOLS.provider)
        chat = _chat_body(parse_body(CountBody, raw, limits), omitted)
        validate_body(ChatBody, chat)
        return chat

    def answer(self, count: int) -> bytes:
        """Return the response with the count."""
        return orjson.dumps({"input_tokens": count})


MESSAGES, COUNT = MessagesApi(), MessagesCount()


def _chat_body(requested: Mapping[str, Any], omitted: Omissions) -> dict[str, Any]:
    """Return the body of a chat completion; fields of vLLM's API are kept."""
    chat = {name: value for name, value in requested.items() if name not in OWN_FIELDS}
    chat["messages"] = list(BlockMessages(omitted).read(requested))
    tools = functions(requested.get("tools") or (), omitted)
    choice = _possible_choice(requested.get("tool_choice") or {}, tools, omitted)
    chat |= {
        "max_tokens": requested.get("max_tokens"),
        "stop": requested.get("stop_sequences") or None,
        "tools": tools or None,
        "tool_choice": _tool_choice(choice) if choice else None,
        "parallel_tool_calls": False if choice.get("disable_parallel_tool_use") else None,
    }
    format_ = (requested.get("output_config") or {}).get("format") or requested.get("output_format")
    if format_:
        chat["response_format"] = _response_format(format_)
    if requested.get("stream"):
        chat["stream_options"] = {"include_usage": True}
    if (
        chat["messages"] and chat["messages"][-1]["role"] == "assistant"
    ):  # the answer continues this text
        chat |= {"continue_final_message": True, "add_generation_prompt": False}
    return {name: value for name, value in chat.items() if value is not None}


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


def _possible_choice(
    choice: Mapping[str, Any], tools: list[JsonObject], omitted: Omissions
) -> Mapping[str, Any]:
    """Return the choice without that of a tool that was left out."""
    names = {tool["function"].get("name") for tool in tools}
    named = choice.get("type") == "tool" and choice.get("name") not in names
    if choice and omitted.tools and (named or not tools):
        omitted.items["tool_choice"] += 1
        return {}
    return choice


def _tool_choice(choice: Mapping[str, Any]) -> str | dict[str, Any]:
    if choice["type"] == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if choice["type"] not in TOOL_CHOICES:
        raise bad_request(
            f"'tool_choice' of the request has the type '{choice['type']}'. Send one of type "
            "'auto', 'any', 'none' or 'tool'."
        )
    return TOOL_CHOICES[choice["type"]]
