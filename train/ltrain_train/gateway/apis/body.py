"""Validation of the untrusted body of a call: JSON of limited depth, fields of their types.

The policy server checks values. This module rejects what would raise an internal error there or
here: it requires finite numbers and bounded lists, and passes unknown fields.
"""

from http import HTTPStatus
from reprlib import Repr
from typing import Annotated, Any, ClassVar, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ltrain_train.gateway.apis.request_limits import RequestLimits
from ltrain_train.gateway.errors import Refused

MAX_DEPTH = 64
"""Maximum nesting of objects and lists in a body; a tool schema has about ten levels."""
MAX_CHOICES = 64
MAX_BIASES = 1024
"""Maximum entries of `logit_bias`; OpenAI allows 300."""
MAX_STOPS = 64
"""Maximum stop sequences; OpenAI allows 4."""
MAX_STOP = 1024
"""Maximum characters of a stop sequence."""
MAX_NAME = 256
"""Maximum characters of a field's or a model's name."""
MAX_INPUT_SHOWN = 300
"""Characters of a value, and of its place, in an error."""

MAX_LOGPROBS = 1 << 20
"""Alternatives of a completion's token that may be requested; vLLM has the limit that counts."""

JsonObject = dict[str, Any]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Stop = Annotated[str, Field(max_length=MAX_STOP)]
Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
"""An integer that fits into a span attribute."""
T = TypeVar("T")
Items = Annotated[list[T], Field(fail_fast=True)]
"""A list that is checked up to its first fault: many faults would take many times as long."""


class Strict(BaseModel):
    """Fields with exactly their types, beside any others."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Function(Strict):
    name: str | None = None
    arguments: str | JsonObject | None = None


class _ToolCall(Strict):
    id: str | None = None
    function: _Function | None = None


class _Message(Strict):
    role: str
    content: str | Items[JsonObject] | None = None
    name: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_call_id: str | None = None
    tool_calls: Items[_ToolCall] | None = None


class _StreamOptions(Strict):
    include_usage: bool | None = None


class Body(Strict):
    """The fields that all APIs share."""

    api: ClassVar[str]
    """The API's name in messages."""
    input_field: ClassVar[str]
    model: str = Field(max_length=MAX_NAME)
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    max_tokens: Count | None = None
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=2**31 - 1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0, le=100)
    seed: Int64 | None = None
    stop: Stop | Annotated[Items[Stop], Field(max_length=MAX_STOPS)] | None = None
    logit_bias: dict[str, float] | None = Field(default=None, max_length=MAX_BIASES, fail_fast=True)
    response_format: JsonObject | None = None
    user: str | None = None
    metadata: JsonObject | None = None
    return_token_ids: bool | None = None


class ChatBody(Body):
    """The fields of a chat completion."""

    api: ClassVar[str] = "OpenAI's chat completions"
    input_field: ClassVar[str] = "messages"
    messages: Items[_Message] = Field(min_length=1)
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: Items[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None


class CompletionBody(Body):
    """The fields of a completion."""

    api: ClassVar[str] = "OpenAI's completions"
    input_field: ClassVar[str] = "prompt"
    prompt: str | Annotated[Items[TokenId], Field(min_length=1)]
    """One prompt: several would be several calls of one span."""
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    echo: bool | None = None
    suffix: str | None = None
    best_of: Count | None = None


OWN_LIMITS = {
    "prompt": "; the gateway takes one prompt in a request, a text or token ids",
}
"""The gateway refuses a request that an API allows."""


def parse_body(
    fields: type[Body], raw: bytes, limits: RequestLimits, model: str = ""
) -> dict[str, Any]:
    """Parse and validate the JSON object of a request.

    Args:
        model: the model of an API that names it in the path.

    Raises:
        Refused: 400, or 413 when the request is beyond the limits.
    """
    limits.require_values(raw)
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise bad_request(
            f"The request's body is not JSON: {error}. Send a JSON object."
        ) from error
    if not isinstance(body, dict):
        raise bad_request(
            "The request's body is not a JSON object. Send one with 'model' and "
            f"'{fields.input_field}'."
        )
    limits.require_items(body)
    if any(len(name) > MAX_NAME for name in body):
        raise bad_request(f"A field's name has at most {MAX_NAME} characters. Remove the field.")
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and _is_deeper(body, MAX_DEPTH):
        raise bad_request(
            f"The request's body is nested deeper than {MAX_DEPTH} levels. Flatten it."
        )
    if model:
        body["model"] = model
    validate_body(fields, body)
    return body


def validate_body(fields: type[Body], body: dict[str, Any]) -> None:
    """Check the fields of a request."""
    try:
        fields.model_validate(body)
    except ValidationError as error:
        raise bad_request(_describe_fault(error, fields.api)) from error


def bad_request(sentence: str) -> Refused:
    """Return a refusal with status 400."""
    return Refused(HTTPStatus.BAD_REQUEST, sentence)


def _is_deeper(value: Any, levels: int) -> bool:
    """Return whether a value has more levels; iterative, as recursion could exhaust the stack."""
    level = [value]
    for _ in range(levels):
        level = [
            child
            for each in level
            for child in (each.values() if isinstance(each, dict) else each)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def _describe_fault(error: ValidationError, api: str) -> str:
    fault = error.errors(include_url=False, include_context=False)[0]
    place = [str(part) for part in fault["loc"] if not _is_union_branch(str(part))]
    where = ".".join(place)[:MAX_INPUT_SHOWN]
    if fault["type"] == "missing":
        return f"The request has no '{where}'. Send it."
    return (
        f"'{where}' of the request cannot be {_shown(fault['input'])}: {fault['msg']}. "
        f"Send a value that {api} API allows{OWN_LIMITS.get(place[0], '')}."
    )


_values = Repr()
_values.maxstring = _values.maxother = MAX_INPUT_SHOWN


def _shown(value: Any) -> str:
    """Return the beginning of a value that may be as long as the request."""
    text = _values.repr(value).encode("ascii", "backslashreplace").decode()
    return text[:MAX_INPUT_SHOWN]


def _is_union_branch(part: str) -> bool:
    """Return whether pydantic added this part to a field's location for one type of a union."""
    return part in ("str", "dict[str,any]") or part.startswith("list[")
