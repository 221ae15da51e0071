"""A request to a policy server: the client's request, and the one that ltrain sends instead.

* ltrain always requests token ids and log-probabilities. Fields that the client did not request are
  null in its response, as the server sends them without the request.
* Guided decoding is allowed and marked: its probabilities cannot be recomputed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Operation = Literal["chat", "text_completion"]
"""OpenTelemetry's names of `/chat/completions` and `/completions`."""

MAX_BODY_BYTES = 64 << 20
"""Maximum bytes of a request that is parsed."""

GRAMMARS = (
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)
"""Fields that allow the tokens of a grammar only."""
FAVOURS = (
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "min_tokens",
    "use_beam_search",
    "logits_processors",
    "thinking_token_budget",
    "watermarking",
    "vllm_xargs",
)
"""Fields that forbid or favour tokens in another way than a grammar."""


@dataclass(frozen=True, slots=True)
class Request:
    operation: Operation
    body: dict[str, Any]
    """The request that is sent to the server."""
    model: str
    """The name that the client requested; its response carries it."""
    stream: bool
    wants_logprobs: bool
    wants_token_ids: bool
    constrained: bool
    overridden: Mapping[str, Any] = field(default_factory=dict)
    """The client's fields that were replaced or removed."""
    hides_model: bool = False
    """Whether the server may answer under another name than that in `body`."""
    provider: str = "vllm"
    """OpenTelemetry's `gen_ai.provider.name` of the server."""

    @property
    def favoured(self) -> bool:
        """Whether a field forbids or favours tokens in another way than a grammar."""
        return any(self.body.get(name) for name in FAVOURS)

    @property
    def choices(self) -> int:
        """Number of responses that the client requested."""
        n = self.body.get("n")
        return n if isinstance(n, int) else 1

    @property
    def replacements(self) -> dict[str, str]:
        """Response fields that the client must not see, with the JSON that it sees instead."""
        hidden = {} if self.wants_token_ids else {"token_ids": "null", "prompt_token_ids": "null"}
        if not self.wants_logprobs:
            hidden["logprobs"] = "null"
        if self.hides_model or self.body["model"] != self.model:
            hidden["model"] = json.dumps(self.model)
        return hidden

    def is_token_only_chunk(self, chunk: dict[str, Any]) -> bool:
        """Return whether vLLM sends this chunk only because of the request for token ids."""
        choices = chunk.get("choices")
        wants_tokens = self.wants_token_ids or self.wants_logprobs
        return not wants_tokens and bool(choices) and all(map(_is_token_only, choices or ()))


def build_request(
    operation: Operation,
    body: dict[str, Any],
    *,
    served_model: str | None = None,
    imposed: Mapping[str, Any] | None = None,
    overridden: Mapping[str, Any] | None = None,
) -> Request:
    """Convert a client's body to one whose response can be used for training.

    Args:
        served_model: the model's name on the server; by default the client's.
        imposed: fields that replace the client's.
        overridden: the client's values of replaced and removed fields.
    """
    chat = operation == "chat"
    logprobs = body.get("logprobs")
    # In a completion it is a number, and 0 requests only the sampled token's
    wants_logprobs = bool(logprobs) if chat else type(logprobs) is int
    body_sent = {**body, **(imposed or {}), "return_token_ids": True}
    if not wants_logprobs:
        body_sent["logprobs"] = True if chat else 0
    if served_model is not None:
        body_sent["model"] = served_model
    return Request(
        operation=operation,
        body=body_sent,
        model=body["model"],
        stream=bool(body.get("stream")),
        wants_logprobs=wants_logprobs,
        wants_token_ids=bool(body.get("return_token_ids")),
        constrained=_is_constrained(body),
        overridden=overridden or {},
    )


def unchanged_request(operation: Operation, body: dict[str, Any], served_model: str) -> Request:
    """Convert a client's body for a server whose responses are not trained on.

    Only the model's name changes: a server that is not vLLM may refuse fields of vLLM.
    """
    return Request(
        operation=operation,
        body={**body, "model": served_model},
        model=body["model"],
        stream=bool(body.get("stream")),
        wants_logprobs=True,
        wants_token_ids=True,
        constrained=_is_constrained(body),
        provider="openai",
    )


def read_request(operation: Operation, raw: bytes) -> Request | None:
    """Parse a client's request; return None if it must not be changed.

    That is a body that is not a JSON object with a model, is larger than 64 MiB, has several
    prompts, or echoes the prompt among the sampled tokens.
    """
    if len(raw) > MAX_BODY_BYTES:
        return None
    try:
        body = json.loads(raw)
    except ValueError:
        return None
    if not isinstance(body, dict) or not isinstance(body.get("model"), str) or body.get("echo"):
        return None
    return build_request(operation, body) if _has_one_prompt(operation, body) else None


def _has_one_prompt(operation: Operation, body: dict[str, Any]) -> bool:
    if operation == "chat":
        messages = body.get("messages")
        return isinstance(messages, list) and all(isinstance(each, dict) for each in messages)
    prompt = body.get("prompt")
    return isinstance(prompt, str) or (
        isinstance(prompt, list) and all(isinstance(each, int) for each in prompt)
    )


def _is_token_only(choice: dict[str, Any]) -> bool:
    has_content = choice.get("delta") != {} or choice.get("finish_reason") is not None
    return not has_content and bool(choice.get("token_ids"))


def _is_constrained(body: dict[str, Any]) -> bool:
    format_ = body.get("response_format")
    choice = body.get("tool_choice")
    return bool(
        (isinstance(format_, dict) and format_.get("type") != "text")
        or choice == "required"
        or isinstance(choice, dict)
        or any(body.get(name) for name in (*GRAMMARS, *FAVOURS))
    )
