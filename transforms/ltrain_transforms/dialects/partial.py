"""What one span says of the call that it describes; every field may be missing."""

import json
from collections.abc import Mapping
from functools import cached_property
from math import isfinite
from typing import Any, Literal, NamedTuple, TypedDict

from ltrain_transforms.dialects.messages import Messages

Kind = Literal["llm", "tool", "retrieval", "embedding", "agent", "node"]


class Parameters:
    """Sampling parameters of a request by their short names."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Parameters | None":
        """Hold those that say something; None where none does."""
        given = {name: value for name, value in values.items() if value not in (None, "")}
        return cls(given) if given else None

    @property
    def temperature(self) -> float | None:
        given = self.values.get("temperature")
        number = isinstance(given, int | float) and not isinstance(given, bool)
        return float(given) if given is not None and number and isfinite(given) else None

    @cached_property
    def text(self) -> str:
        """As JSON, sorted by name."""
        return json.dumps(self.values, sort_keys=True)


class Tokens(NamedTuple):
    """Token ids and log-probabilities as they were written; decoded for all calls at once."""

    prompt: str | None
    response: str | None
    logprobs: str | None
    prompt_count: int | None
    response_count: int | None
    span_id: str
    attribute: str
    """Where the prompt's ids stand."""
    recorded_by: str = "capture"
    """Who recorded them: `token_source` of `CALLS`."""


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
    params: Parameters
    tools: str
    """The definitions that the request carried, a JSON list."""
    input_messages: Messages
    output_messages: Messages
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
    reasoning_tokens: int
    cached_tokens: int
    response_id: str
    tokens: Tokens
    measured: bool
    """The gateway's or a capture's word, innermost of all."""
    constrained: bool
    delivered: bool


def as_text(given: Any) -> str | None:
    """Give a name or an id out of parsed JSON as text, whatever it was written as."""
    return given if given is None or isinstance(given, str) else str(given)


def non_empty(**fields: Any) -> Partial:
    """Keep the fields that say something."""
    # mostly nothing is said, and to compare with 0 costs more than to look for None
    return {  # type: ignore[return-value]
        name: value for name, value in fields.items() if value is not None and (value or value == 0)
    }
