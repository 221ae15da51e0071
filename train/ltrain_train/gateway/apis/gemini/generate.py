"""Gemini's `generateContent`, `streamGenerateContent` and `countTokens`, as chat completions.

The model is in the path of a request, and the API's streams are server-sent events.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import orjson
from pydantic import Field

from ltrain_train.gateway.apis.api import ClientCall
from ltrain_train.gateway.apis.body import (
    Body,
    ChatBody,
    Count,
    Int64,
    Items,
    JsonObject,
    Strict,
    bad_request,
    parse_body,
    validate_body,
)
from ltrain_train.gateway.apis.gemini.answer import GeminiAnswer
from ltrain_train.gateway.apis.gemini.content import SERVER_TOOLS, GeminiTools, read_messages
from ltrain_train.gateway.apis.gemini.schema import plain_schema
from ltrain_train.gateway.apis.omissions import Omissions
from ltrain_train.gateway.apis.request_fields import (
    GEMINI_RULES,
    require_supported,
    rules_by_field,
)
from ltrain_train.gateway.apis.request_limits import RequestLimits

OWN_FIELDS = rules_by_field(GEMINI_RULES)
CONFIG = "generationConfig"
VERSIONS = ("/v1beta", "/v1")
"""The beginning of the path in Google's clients, by their version."""
MODELS = "/models/{model:path}"
SAMPLING = {
    "temperature": "temperature",
    "topP": "top_p",
    "topK": "top_k",
    "maxOutputTokens": "max_tokens",
    "stopSequences": "stop",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
    "seed": "seed",
}
"""Fields of `generationConfig`, and those of the chat completion."""


class _Blob(Strict):
    mimeType: str | None = None
    data: str | None = None


class _FunctionCall(Strict):
    id: str | None = None
    name: str | None = None
    args: JsonObject | None = None


class _FunctionResponse(Strict):
    id: str | None = None
    name: str | None = None
    response: JsonObject | None = None
    parts: Items["_Part"] | None = None


class _Part(Strict):
    text: str | None = None
    thought: bool | None = None
    thoughtSignature: str | None = None
    inlineData: _Blob | None = None
    functionCall: _FunctionCall | None = None
    functionResponse: _FunctionResponse | None = None


class _Content(Strict):
    role: str | None = None
    parts: Items[_Part] | None = None


class _Declaration(Strict):
    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    parametersJsonSchema: JsonObject | None = None


class _Tool(Strict):
    functionDeclarations: Items[_Declaration] | None = None


class _CallingConfig(Strict):
    mode: str | None = None
    allowedFunctionNames: Items[str] | None = None


class _ToolConfig(Strict):
    functionCallingConfig: _CallingConfig | None = None


class _ThinkingConfig(Strict):
    includeThoughts: bool | None = None
    thinkingBudget: int | None = None
    thinkingLevel: str | None = None


class _GenerationConfig(Strict):
    maxOutputTokens: Count | None = None
    stopSequences: Items[str] | None = None
    topK: float | None = None
    seed: Int64 | None = None
    responseMimeType: str | None = None
    responseSchema: JsonObject | None = None
    responseJsonSchema: JsonObject | None = None
    thinkingConfig: _ThinkingConfig | None = None


class GeminiBody(Body):
    """The fields of a request for content."""

    api: ClassVar[str] = "Gemini's"
    input_field: ClassVar[str] = "contents"
    contents: Items[_Content] = Field(min_length=1)
    systemInstruction: _Content | None = None
    tools: Items[_Tool] | None = None
    toolConfig: _ToolConfig | None = None
    generationConfig: _GenerationConfig | None = None


class GeminiApi:
    """Content at once, or as a stream."""

    def __init__(self, version: str, method: str, stream: bool) -> None:
        self.path, self._stream = f"{version}{MODELS}:{method}", stream

    def parse(self, raw: bytes, limits: RequestLimits, model: str = "") -> ClientCall:
        """Parse a request and convert it to a chat completion's."""
        requested = parse_body(GeminiBody, raw, limits, model)
        omitted = Omissions(SERVER_TOOLS.provider)
        chat = _chat_body(requested, omitted)
        if self._stream:
            chat |= {"stream": True, "stream_options": {"include_usage": True}}
        validate_body(ChatBody, chat)
        thinking = (requested.get(CONFIG) or {}).get("thinkingConfig") or {}
        answer = partial(GeminiAnswer, shows_thoughts=bool(thinking.get("includeThoughts")))
        return ClientCall("chat", chat, answer, requested, omitted)


class GeminiCount:
    """The number of tokens of a prompt."""

    def __init__(self, version: str) -> None:
        self.path = f"{version}{MODELS}:countTokens"

    def parse(self, raw: bytes, limits: RequestLimits, model: str = "") -> JsonObject:
        """Parse a request, and return the chat completion with this prompt."""
        requested = parse_body(Body, raw, limits, model)
        inner = requested.get("generateContentRequest")
        requested = {**(inner if isinstance(inner, dict) else requested), "model": model}
        validate_body(GeminiBody, requested)
        chat = _chat_body(requested, Omissions(SERVER_TOOLS.provider))
        validate_body(ChatBody, chat)
        return chat

    def answer(self, count: int) -> bytes:
        """Return the response with the count."""
        return orjson.dumps({"totalTokens": count})


METHODS = {"generateContent": False, "streamGenerateContent": True}
"""Whether a method answers with a stream."""
APIS = [GeminiApi(version, *each) for version in VERSIONS for each in METHODS.items()]
COUNTS = [GeminiCount(version) for version in VERSIONS]


def _chat_body(requested: Mapping[str, Any], omitted: Omissions) -> JsonObject:
    """Return the body of a chat completion; fields of vLLM's API are kept."""
    config = requested.get(CONFIG) or {}
    named = {**requested, **{f"{CONFIG}.{name}": value for name, value in config.items()}}
    require_supported(named, OWN_FIELDS)
    tools = GeminiTools(requested, omitted)
    chat = {name: value for name, value in named.items() if name not in OWN_FIELDS}
    chat |= {new: config.get(name) for name, new in SAMPLING.items()}
    chat |= {
        "messages": list(read_messages(requested, omitted)),
        "tools": tools.functions or None,
        "tool_choice": tools.choice,
        "response_format": _response_format(config),
        "reasoning_effort": _effort(config.get("thinkingConfig") or {}),
    }
    if isinstance(chat["top_k"], float):
        chat["top_k"] = int(chat["top_k"])
    return {name: value for name, value in chat.items() if value not in (None, [])}


def _response_format(config: Mapping[str, Any]) -> JsonObject | None:
    kind = config.get("responseMimeType") or "text/plain"
    if kind == "text/plain":
        return None
    if kind != "application/json":
        raise bad_request(
            f"'{CONFIG}.responseMimeType' of the request cannot be '{kind}'. Send 'text/plain' or "
            "'application/json'."
        )
    schema = config.get("responseJsonSchema")
    if schema is None and config.get("responseSchema") is not None:
        schema = plain_schema(config["responseSchema"])
    if schema is None:
        return {"type": "json_object"}
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": True},
    }


def _effort(thinking: Mapping[str, Any]) -> str | None:
    """Return the effort of reasoning; a budget other than 0 has no counterpart."""
    level = str(thinking.get("thinkingLevel") or "").lower()
    if level in ("minimal", "low", "medium", "high"):
        return level
    return "none" if thinking.get("thinkingBudget") == 0 else None
