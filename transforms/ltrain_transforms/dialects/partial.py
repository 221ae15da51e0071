"""What one span says of the call that it describes; every field may be missing."""

from typing import Any, Literal, TypedDict

Kind = Literal["llm", "tool", "retrieval", "embedding", "agent", "node"]
Message = dict[str, Any]
"""As the gen_ai conventions have it: `{"role", "parts": [{"type", ...}], "finish_reason"}`."""


class Partial(TypedDict, total=False):
    kind: Kind
    name: str
    version: str
    endpoint: str
    agent: str
    node: str
    model: str
    policy: str
    policy_version: int
    params: dict[str, Any]
    tools: str
    """The definitions that the request carried, a JSON list."""
    input_messages: list[Message]
    output_messages: list[Message]
    input: str
    """Of what is no LLM call, as text."""
    output: str
    arguments: str
    tool_call_id: str
    status: Literal["error"]
    """Only a failure is said: a soft one leaves the span's own status alone."""
    error_type: str
    finish_reason: str
    input_tokens: int
    output_tokens: int
    response_id: str
    prompt_token_ids: list[int]
    response_token_ids: list[list[int]]
    """One list a choice."""
    response_logprobs: list[list[float]]
    damaged: bool
    """Token ids were there, and are cut short or disagree with their counts."""
    measured: bool
    """The gateway's or a capture's word, innermost of all."""
    constrained: bool
    delivered: bool


def said(**fields: Any) -> Partial:
    """Keep the fields that say something."""
    return {name: value for name, value in fields.items() if value not in (None, "", [], {})}  # type: ignore[return-value]


def text_of(messages: list[Message] | None) -> str:
    """Give the text of all parts, in order."""
    parts = (part for message in messages or [] for part in parts_of(message))
    return "".join(str(part.get("content") or "") for part in parts if part.get("type") == "text")


def parts_of(message: Message) -> list[dict[str, Any]]:
    """Give a message's parts; a stray one that is no object is left out."""
    parts = message.get("parts") if isinstance(message, dict) else None
    return [part for part in parts or [] if isinstance(part, dict)]


def tool_requests(messages: list[Message] | None) -> list[dict[str, Any]]:
    """Give the tool calls that these messages ask for, in order."""
    parts = (part for message in messages or [] for part in parts_of(message))
    return [part for part in parts if part.get("type") == "tool_call"]
