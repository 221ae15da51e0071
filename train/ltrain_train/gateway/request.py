"""A chat request: what the agent asked, and what the policy server is asked instead.

* Token ids and log-probabilities are always asked for; the answer is stripped of what the agent did
  not ask for.
* Imposed sampling replaces whatever would change the probabilities of the sampled tokens.
* Decoding under constraints is let through and marked: its probabilities cannot be recomputed.
"""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import orjson

from ltrain_train.gateway.refusal import Refused

NEUTRAL: dict[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Sampling from the model's own distribution."""

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
class ChatRequest:
    body: dict[str, Any]
    """What the policy server is asked."""
    model: str
    """The name that the agent asked for; the answer carries it."""
    asked: dict[str, Any]
    """The agent's sampling fields where something else was imposed."""
    stream: bool
    wants_logprobs: bool
    wants_token_ids: bool
    constrained: bool

    @property
    def choices(self) -> int:
        """How many answers were asked for."""
        n = self.body.get("n")
        return n if isinstance(n, int) else 1

    def encode(self) -> bytes:
        """Give the body as JSON."""
        return orjson.dumps(self.body)


def read_request(raw: bytes, served: str, sampling: dict[str, float]) -> ChatRequest:
    """Read an agent's request and make it one that the server `served` answers for training.

    Raises:
        Refused: when it is not a JSON object with a model and messages.
    """
    body = _parse(raw)
    model, wants_logprobs = body["model"], bool(body.get("logprobs"))
    wants_token_ids = bool(body.get("return_token_ids"))
    asked = _impose(body, sampling) if sampling else {}
    body |= {"model": served, "logprobs": True, "return_token_ids": True}
    return ChatRequest(
        body=body,
        model=model,
        asked=asked,
        stream=bool(body.get("stream")),
        wants_logprobs=wants_logprobs,
        wants_token_ids=wants_token_ids,
        constrained=_constrained(body),
    )


def _parse(raw: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _bad(f"The request's body is not JSON: {error}.") from error
    if not isinstance(body, dict):
        raise _bad("The request's body is not a JSON object.")
    if not isinstance(body.get("model"), str):
        raise _bad("The request has no 'model': give the policy's name.")
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise _bad("The request has no 'messages': give a list of chat messages.")
    return body


def _impose(body: dict[str, Any], sampling: dict[str, float]) -> dict[str, Any]:
    """Put `sampling` into the body, neutral values for the rest; give what the agent had asked.

    A seed goes too: with one, the rollouts of a group would all be the same.
    """
    imposed = NEUTRAL | sampling
    asked = {name: body[name] for name in imposed if body.get(name) not in (None, imposed[name])}
    if "seed" not in imposed and body.get("seed") is not None:
        asked["seed"] = body.pop("seed")
    body |= imposed
    return asked


def _constrained(body: dict[str, Any]) -> bool:
    format_ = body.get("response_format")
    choice = body.get("tool_choice")
    return bool(
        (isinstance(format_, dict) and format_.get("type") != "text")
        or choice == "required"
        or isinstance(choice, dict)
        or any(body.get(name) for name in CONSTRAINTS)
    )


def _bad(sentence: str) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, sentence)
