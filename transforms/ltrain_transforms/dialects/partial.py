"""The fields of a call that one span describes; every field may be missing."""

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from math import isfinite
from typing import Any, Literal, NamedTuple, TypedDict

from ltrain_transforms.dialects.attribute_messages import AttributeMessages
from ltrain_transforms.traces import Span

Kind = Literal["llm", "tool", "retrieval", "embedding", "agent", "node"]


class Parameters:
    """Sampling parameters of a request, by their short names."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "Parameters | None":
        """Return the parameters that have a value; None where none has."""
        present = {name: value for name, value in values.items() if value not in (None, "")}
        return cls(present) if present else None

    @property
    def temperature(self) -> float | None:
        value = self.values.get("temperature")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if value is not None and number and isfinite(value) else None

    @cached_property
    def text(self) -> str:
        """The parameters as JSON, sorted by name."""
        return json.dumps(self.values, sort_keys=True)


class Tokens(NamedTuple):
    """Token ids and log-probabilities as text; they are decoded for all calls at once."""

    prompt: str | None
    response: str | None
    logprobs: str | None
    prompt_count: int | None
    response_count: int | None
    span_id: str
    attribute: str
    """The attribute that holds the prompt's ids."""
    recorded_by: str = "capture"
    """Who recorded them: the column `token_source` of `CALLS`."""


class Partial(TypedDict, total=False):
    """The content of a call that one span records.

    A column of `CALLS` with the source `FIELD` needs no entry here: `non_empty` takes any field.
    """

    kind: Kind
    name: str
    version: str
    endpoint: str
    agent: str | None
    guessed_agent: str
    """The agent's name by the gateway, of a call without a trace; another name comes first."""
    delegated_by: str
    """The span of the tool call for which a sub-agent works, by the gateway; a place in the agent's
    own spans comes first."""
    node: str
    model: str
    policy: str
    policy_version: int
    params: Parameters
    tools: str
    """The tool definitions of the request, a JSON list."""
    input_messages: AttributeMessages
    output_messages: AttributeMessages
    excerpt: bool
    """Whether the span has only the text of the answer, without the tools that it requests."""
    input: str
    """Of calls other than LLM calls, as text."""
    output: str
    arguments: str
    tool_call_id: str
    status: Literal["error"]
    """Set only for a failure; a tool may fail although its span has no error status."""
    error_type: str
    finish_reason: str
    input_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cached_tokens: int
    response_id: str
    tokens: Tokens
    measured: bool
    """Whether the gateway or a capture wrote the span: it has the highest priority."""
    constrained: bool
    constraint: str
    """The grammar by which the server masked the sampled ids, JSON."""
    continued: int
    """With how many ids of an earlier call the prompt begins, under `serve.continue_tokens`."""
    not_continued: str
    """Why the chat template rendered the whole prompt, although it repeats an answer."""
    delivered: bool
    untimed: bool
    """Whether the span's times are not those of the call."""


class Dialect(NamedTuple):
    """How the attributes of one instrumentation are read as fields of a call, and its row in the
    documentation."""

    name: str
    prefixes: tuple[str, ...]
    """Beginnings of attribute names, each after a line break; one of them is enough to be read."""
    read: Callable[[Span], Partial]
    written_by: str = ""
    """The instrumentation and its versions."""
    read_from: str = ""
    """The attributes that are read."""
    kinds: str = ""
    """The kinds of calls that it describes."""
    messages: str = ""
    """The form of its messages."""
    tokens: str = ""
    """The tokens that the span records: counts, ids, log-probabilities."""
    missing: str = ""
    """The fields that it cannot fill."""


def as_text(value: Any) -> str | None:
    """Return a name or an id of parsed JSON as text, whatever its type."""
    return value if value is None or isinstance(value, str) else str(value)


def non_empty(**fields: Any) -> Partial:
    """Return the fields that have a value; 0 is one."""
    # most fields are None, and comparing with 0 costs more than testing for None
    return {  # type: ignore[return-value]
        name: value for name, value in fields.items() if value is not None and (value or value == 0)
    }
