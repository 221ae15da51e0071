"""The body of a chat request as untrusted bytes: JSON of known depth, every field of its type.

The policy server checks values; this checks what would fail inside it, or here, as an error of
its own. Numbers are finite, lists are bounded, and fields that are unknown here pass.
"""

from http import HTTPStatus
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ltrain_train.gateway.refusal import Refused

DEEPEST = 64
"""Levels of objects and lists in a body: a schema of tools has about ten."""
MOST_CHOICES = 64
MOST_BIASES = 1024
"""Tokens that one request may favour; OpenAI takes 300."""
LONGEST_FAULT = 300

Part = dict[str, Any]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Long = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
"""What a span's attribute can hold."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Function(_Strict):
    name: str | None = None
    arguments: str | Part | None = None


class _ToolCall(_Strict):
    id: str | None = None
    function: _Function | None = None


class _Message(_Strict):
    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _StreamOptions(_Strict):
    include_usage: bool | None = None


class _Body(_Strict):
    model: str
    messages: list[_Message] = Field(min_length=1)
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = Field(default=None, ge=1, le=MOST_CHOICES)
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=2**31 - 1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0, le=100)
    seed: Long | None = None
    stop: str | list[str] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    logit_bias: dict[str, float] | None = Field(default=None, max_length=MOST_BIASES)
    tools: list[Part] | None = None
    tool_choice: str | Part | None = None
    parallel_tool_calls: bool | None = None
    response_format: Part | None = None
    reasoning_effort: str | None = None
    user: str | None = None
    metadata: Part | None = None
    return_token_ids: bool | None = None


def read_body(raw: bytes) -> dict[str, Any]:
    """Return the JSON object that a request carries.

    Raises:
        Refused: 400, when it is no chat request; the sentence names the field.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise bad(f"The request's body is not JSON: {error}. Send a JSON object.") from error
    if not isinstance(body, dict):
        raise bad("The request's body is not a JSON object. Send one with 'model' and 'messages'.")
    if raw.count(b"{") + raw.count(b"[") > DEEPEST and _deeper(body, DEEPEST):
        raise bad(f"The request's body is nested deeper than {DEEPEST} levels. Flatten it.")
    try:
        _Body.model_validate(body)
    except ValidationError as error:
        raise bad(_sentence(error)) from error
    return body


def bad(sentence: str) -> Refused:
    """Return the refusal of a request that is the client's mistake."""
    return Refused(HTTPStatus.BAD_REQUEST, sentence)


def _deeper(value: Any, levels: int) -> bool:
    """Walk the levels one by one: recursion would end where a hostile body wants it."""
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


def _sentence(error: ValidationError) -> str:
    fault = error.errors(include_url=False, include_context=False)[0]
    place = [str(part) for part in fault["loc"] if not _is_branch(str(part))]
    found = ascii(fault["input"])[:LONGEST_FAULT]
    if fault["type"] == "missing":
        return f"The request has no '{'.'.join(place)}'. Send it."
    return (
        f"'{'.'.join(place)}' of the request cannot be {found}: {fault['msg']}. "
        "Send what OpenAI's chat completions take."
    )


def _is_branch(part: str) -> bool:
    """Tell what pydantic adds to the place of a field that has one of several types."""
    return part in ("str", "dict[str,any]") or part.startswith("list[")
