"""A request to a policy server: what its client asked, and what the server is asked instead.

* Token ids and log-probabilities are always asked for. What the client did not ask for is taken out
  of the answer: its fields are null there, as the server says it when nobody asks.
* Decoding under constraints is let through and marked: its probabilities cannot be recomputed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Operation = Literal["chat", "text_completion"]
"""OpenTelemetry's names of `/chat/completions` and `/completions`."""

LARGEST = 64 << 20
"""Bytes of a request that is read."""

CONSTRAINTS = (
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "min_tokens",
    "use_beam_search",
)
"""Fields that forbid or favour tokens, by another rule than the model's."""


@dataclass(frozen=True, slots=True)
class Request:
    operation: Operation
    body: dict[str, Any]
    """What the server is asked."""
    model: str
    """The name that the client asked for; the answer carries it."""
    stream: bool
    wants_logprobs: bool
    wants_token_ids: bool
    constrained: bool
    overruled: Mapping[str, Any] = field(default_factory=dict)
    """The client's sampling fields where something else was imposed."""

    @property
    def choices(self) -> int:
        """How many answers were asked for."""
        n = self.body.get("n")
        return n if isinstance(n, int) else 1

    @property
    def instead(self) -> dict[str, str]:
        """The answer's fields that the client is not to see, and the JSON that it sees there."""
        hidden = {} if self.wants_token_ids else {"token_ids": "null", "prompt_token_ids": "null"}
        if not self.wants_logprobs:
            hidden["logprobs"] = "null"
        if self.body["model"] != self.model:
            hidden["model"] = json.dumps(self.model)
        return hidden

    def hides(self, chunk: dict[str, Any]) -> bool:
        """Tell a chunk that vLLM sends only because it was asked for token ids."""
        choices = chunk.get("choices")
        asked = self.wants_token_ids or self.wants_logprobs
        return not asked and bool(choices) and all(map(_only_tokens, choices or ()))


def ask(
    operation: Operation,
    body: dict[str, Any],
    *,
    served: str | None = None,
    imposed: Mapping[str, Any] | None = None,
    overruled: Mapping[str, Any] | None = None,
) -> Request:
    """Make of a client's body one that the server answers for training.

    Args:
        served: the model's name there; the client's own by default.
        imposed: fields that replace the client's.
        overruled: what the client had in them.
    """
    chat = operation == "chat"
    logprobs = body.get("logprobs")
    # In a completion it is a number, and 0 asks for the sampled token's alone
    wants_logprobs = bool(logprobs) if chat else type(logprobs) is int
    asked = {**body, **(imposed or {}), "return_token_ids": True}
    if not wants_logprobs:
        asked["logprobs"] = True if chat else 0
    if served is not None:
        asked["model"] = served
    return Request(
        operation=operation,
        body=asked,
        model=body["model"],
        stream=bool(body.get("stream")),
        wants_logprobs=wants_logprobs,
        wants_token_ids=bool(body.get("return_token_ids")),
        constrained=_constrained(body),
        overruled=overruled or {},
    )


def read_request(operation: Operation, raw: bytes) -> Request | None:
    """Read a client's request; None for one that is to be left alone.

    That is what is no JSON object with a model, is larger than 64 MiB, asks for several prompts at
    once, or has the prompt echoed among the sampled tokens.
    """
    if len(raw) > LARGEST:
        return None
    try:
        body = json.loads(raw)
    except ValueError:
        return None
    if not isinstance(body, dict) or not isinstance(body.get("model"), str) or body.get("echo"):
        return None
    return ask(operation, body) if _is_one(operation, body) else None


def _is_one(operation: Operation, body: dict[str, Any]) -> bool:
    if operation == "chat":
        messages = body.get("messages")
        return isinstance(messages, list) and all(isinstance(each, dict) for each in messages)
    prompt = body.get("prompt")
    return isinstance(prompt, str) or (
        isinstance(prompt, list) and all(isinstance(each, int) for each in prompt)
    )


def _only_tokens(choice: dict[str, Any]) -> bool:
    said = choice.get("delta") != {} or choice.get("finish_reason") is not None
    return not said and bool(choice.get("token_ids"))


def _constrained(body: dict[str, Any]) -> bool:
    format_ = body.get("response_format")
    choice = body.get("tool_choice")
    return bool(
        (isinstance(format_, dict) and format_.get("type") != "text")
        or choice == "required"
        or isinstance(choice, dict)
        or any(body.get(name) for name in CONSTRAINTS)
    )
