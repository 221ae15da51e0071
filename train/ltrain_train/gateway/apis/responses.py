"""`/v1/responses`, converted to chat completions: their prompts and tokens are what is trained.

A request has its whole input here: see `kept_responses`.
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
    parse_body,
    validate_body,
)
from ltrain_train.gateway.apis.omissions import Omissions
from ltrain_train.gateway.apis.request_fields import (
    RESPONSE_RULES,
    require_supported,
    rules_by_field,
)
from ltrain_train.gateway.apis.request_limits import RequestLimits
from ltrain_train.gateway.apis.responses_answer import LOGPROBS, ResponsesAnswer
from ltrain_train.gateway.apis.responses_calls import TOOL_SEARCH
from ltrain_train.gateway.apis.responses_input import InputMessages, plain_text
from ltrain_train.gateway.apis.responses_tools import SERVER_TOOLS, ResponsesTools

OWN_FIELDS = rules_by_field(RESPONSE_RULES)
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Efforts of reasoning that vLLM 0.32 knows."""


class _Part(Strict):
    type: str | None = None
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    detail: str | None = None


class _Item(Strict):
    type: str = "message"
    role: str | None = None
    content: str | Items[_Part] | None = None
    call_id: str | None = None
    id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | JsonObject | None = None
    input: str | None = None
    action: str | JsonObject | None = None
    operation: JsonObject | None = None
    output: str | Items[_Part] | JsonObject | None = None
    encrypted_content: str | None = None
    tools: Items["_Tool"] | None = None


class _Format(Strict):
    type: str | None = None
    syntax: str | None = None
    definition: str | None = None


class _Tool(Strict):
    type: str | None = None
    name: str | None = None
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None
    format: _Format | None = None
    tools: Items["_Tool"] | None = None
    """The tools of a namespace."""


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
    """OpenAI's Responses API, with the tools that a client runs."""

    path = "/v1/responses"

    def parse(self, raw: bytes, limits: RequestLimits, model: str = "") -> ClientCall:
        """Parse a request and convert it to a chat completion's."""
        requested = parse_body(ResponsesBody, raw, limits)
        require_supported(requested, OWN_FIELDS)
        omitted = Omissions(SERVER_TOOLS.provider)
        tools = ResponsesTools(_requested_tools(requested), omitted)
        chat = _chat_body(requested, tools, omitted)
        validate_body(ChatBody, chat)
        answer = partial(ResponsesAnswer, requested=requested, tools=tools)
        return ClientCall("chat", chat, answer, requested, omitted)


RESPONSES = ResponsesApi()


def _chat_body(
    requested: Mapping[str, Any], tools: ResponsesTools, omitted: Omissions
) -> dict[str, Any]:
    """Return the body of a chat completion; fields of vLLM's API are kept."""
    chat = {name: value for name, value in requested.items() if name not in OWN_FIELDS}
    choice = requested.get("tool_choice")
    functions = tools.functions(choice)
    single = requested.get("parallel_tool_calls") if functions or not omitted.tools else None
    chat |= {
        "messages": _messages(requested, InputMessages(tools, omitted)),
        "max_completion_tokens": requested.get("max_output_tokens"),
        "tools": functions,
        "tool_choice": tools.choice(choice),
        "parallel_tool_calls": single,
        "response_format": _response_format((requested.get("text") or {}).get("format")),
        "reasoning_effort": _effort(requested.get("reasoning") or {}),
    }
    if requested.get("stream"):
        chat["stream_options"] = {"include_usage": True}
    if LOGPROBS in (requested.get("include") or ()):
        chat |= {"logprobs": True, "top_logprobs": requested.get("top_logprobs")}
    return {name: value for name, value in chat.items() if value is not None}


def _requested_tools(requested: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the tools of the request, and those that its input adds."""
    yield from requested.get("tools") or ()
    for item in requested["input"] if isinstance(requested["input"], list) else ():
        if item.get("type") in ("additional_tools", TOOL_SEARCH.output):
            yield from item.get("tools") or ()


def _messages(requested: Mapping[str, Any], messages: InputMessages) -> list[dict[str, Any]]:
    """Return the messages; texts of the system at the beginning are one, as templates need it."""
    instructions = requested.get("instructions")
    rest = list(messages.read(requested["input"]))
    texts = [instructions] if instructions else []
    while rest and rest[0]["role"] == "system" and (text := plain_text(rest[0]["content"])):
        texts.append(text)
        rest.pop(0)
    return [*([{"role": "system", "content": "\n\n".join(texts)}] if texts else []), *rest]


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
