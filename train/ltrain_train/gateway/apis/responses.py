"""`/v1/responses`, converted to chat completions: their prompts and tokens are what is trained.

The gateway keeps no responses, so a request has its whole input. A turn of the assistant, which the
API splits into items, becomes one message again: the prompt then begins with what the model wrote.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

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
from ltrain_train.gateway.apis.request_fields import (
    RESPONSE_RULES,
    require_supported,
    rules_by_field,
)
from ltrain_train.gateway.apis.request_limits import RequestLimits
from ltrain_train.gateway.apis.responses_answer import LOGPROBS, ResponsesAnswer

OWN_FIELDS = rules_by_field(RESPONSE_RULES)
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Efforts of reasoning that vLLM 0.32 knows."""


class _Part(Strict):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    detail: str | None = None


class _Item(Strict):
    type: str = "message"
    role: str | None = None
    content: str | Items[_Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | Items[_Part] | None = None


class _Tool(Strict):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class _Text(Strict):
    format: JsonObject | None = None


class _Reasoning(Strict):
    effort: str | None = None


class ResponsesBody(Body):
    """The fields of a response."""

    api: ClassVar[str] = "OpenAI's responses"
    input_field: ClassVar[str] = "input"

    input: str | Items[_Item]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    tools: Items[_Tool] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    text: _Text | None = None
    reasoning: _Reasoning | None = None
    include: Items[str] | None = None
    top_logprobs: int | None = None


class ResponsesApi:
    """OpenAI's Responses API, with functions as its only tools."""

    path = "/v1/responses"

    def parse(self, raw: bytes, limits: RequestLimits) -> ClientCall:
        """Parse a request and convert it to a chat completion's."""
        requested = parse_body(ResponsesBody, raw, limits)
        require_supported(requested, OWN_FIELDS)
        chat = _chat_body(requested)
        validate_body(ChatBody, chat)
        return ClientCall("chat", chat, partial(ResponsesAnswer, requested=requested), requested)


RESPONSES = ResponsesApi()


def _chat_body(requested: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a chat completion; fields of vLLM's API are kept."""
    chat = {name: value for name, value in requested.items() if name not in OWN_FIELDS}
    chat["messages"] = list(_messages(requested))
    chat |= {
        "max_completion_tokens": requested.get("max_output_tokens"),
        "tools": [_tool(tool) for tool in requested.get("tools") or ()] or None,
        "tool_choice": _tool_choice(requested.get("tool_choice")),
        "parallel_tool_calls": requested.get("parallel_tool_calls"),
        "response_format": _response_format((requested.get("text") or {}).get("format")),
        "reasoning_effort": _effort(requested.get("reasoning") or {}),
    }
    if requested.get("stream"):
        chat["stream_options"] = {"include_usage": True}
    if LOGPROBS in (requested.get("include") or ()):
        chat |= {"logprobs": True, "top_logprobs": requested.get("top_logprobs")}
    return {name: value for name, value in chat.items() if value is not None}


def _messages(requested: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if requested.get("instructions"):
        yield {"role": "system", "content": requested["instructions"]}
    items = requested["input"]
    if isinstance(items, str):
        yield {"role": "user", "content": items}
        return
    turn: dict[str, Any] = {}
    """The assistant's message whose items are being read."""
    for number, item in enumerate(items):
        message = _message(item, number)
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


def _message(item: Mapping[str, Any], number: int) -> dict[str, Any] | None:
    """Return an item as a chat message, or as a part of the assistant's; None if it is empty."""
    kind = item.get("type", "message")
    if kind == "message":
        role = item.get("role") or "user"
        role = "system" if role == "developer" else role
        return {"role": role, "content": _content(item, number)}
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "tool_calls": [call]}
    if kind == "function_call_output":
        content = _content({"content": item.get("output")}, number)
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}
    if kind == "reasoning":
        text = "".join(part.get("text") or "" for part in item.get("content") or ())
        return {"role": "assistant", "reasoning": text} if text else None
    raise bad_request(
        f"'input.{number}' of the request has the type '{kind}', which a chat completion has not. "
        "Send messages, function calls and their outputs, and reasoning."
    )


def _begins_turn(turn: Mapping[str, Any], message: Mapping[str, Any]) -> bool:
    """Return whether it is of another turn: in one, reasoning, text and calls follow in order."""
    if "tool_calls" in message:
        return False
    return "tool_calls" in turn or "content" in turn or ("reasoning" in message and bool(turn))


def _join(turn: Mapping[str, Any], message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the turn with another item of it; its list of calls grows in place."""
    calls = turn.get("tool_calls", [])
    calls += message.get("tool_calls", ())
    joined = {**turn, **message}
    return {**joined, "tool_calls": calls} if calls else joined


def _content(item: Mapping[str, Any], number: int) -> str | list[dict[str, Any]]:
    content = item.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    parts = [_part(part, number) for part in content]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    return texts[0] if len(texts) == len(parts) == 1 else parts


def _part(part: Mapping[str, Any], number: int) -> dict[str, Any]:
    kind = part["type"]
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


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool["type"] != "function":
        raise bad_request(
            f"A tool of the request has the type '{tool['type']}', which only OpenAI's servers "
            "run. Send tools of type 'function'."
        )
    fields = ("name", "description", "parameters", "strict")
    function = {name: tool[name] for name in fields if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _tool_choice(choice: str | Mapping[str, Any] | None) -> str | dict[str, Any] | None:
    if choice is None or isinstance(choice, str):
        return choice
    if choice.get("type") != "function":
        raise bad_request(
            f"'tool_choice' of the request has the type '{choice.get('type')}'. Send 'auto', "
            "'none', 'required', or a function."
        )
    return {"type": "function", "function": {"name": choice.get("name")}}


def _response_format(format_: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if format_ is None or format_.get("type") == "text":
        return None
    if format_.get("type") != "json_schema":
        return dict(format_)
    fields = ("name", "description", "schema", "strict")
    schema = {name: format_[name] for name in fields if format_.get(name) is not None}
    return {"type": "json_schema", "json_schema": schema}


def _effort(reasoning: Mapping[str, Any]) -> str | None:
    effort = reasoning.get("effort")
    return effort if effort in EFFORTS else None
