"""The response of a policy server, built from a complete body or from the chunks of a stream.

Token ids and log-probabilities are kept exactly as the server reported them.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Choice:
    message: dict[str, Any] = field(default_factory=dict)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    """vLLM's name of the stop sequence that ended the answer, or the id; None for any other end."""


@dataclass(slots=True)
class ModelResponse:
    id: str | None = None
    prompt_token_ids: list[int] | None = None
    choices: dict[int, Choice] = field(default_factory=dict)
    usage: dict[str, Any] | None = None

    @property
    def finished(self) -> int:
        """Number of choices that have ended."""
        return sum(choice.finish_reason is not None for choice in self.choices.values())

    @property
    def sampled(self) -> int:
        """Number of sampled tokens whose ids are known."""
        return sum(len(choice.token_ids) for choice in self.choices.values())

    @property
    def ordered_choices(self) -> list[Choice]:
        """The choices in the order of their index."""
        return [self.choices[index] for index in sorted(self.choices)]

    def add_payload(self, payload: dict[str, Any]) -> None:
        """Add a complete response or one chunk of a stream."""
        self.id = self.id or payload.get("id")
        self.usage = payload.get("usage") or self.usage
        self._add_prompt_tokens(payload)
        for choice in payload.get("choices") or ():
            self._add_prompt_tokens(choice)  # completions report it here
            self._add_choice(choice)

    def _add_prompt_tokens(self, payload: dict[str, Any]) -> None:
        if payload.get("prompt_token_ids") is not None:
            self.prompt_token_ids = payload["prompt_token_ids"]

    def _add_choice(self, payload: dict[str, Any]) -> None:
        choice = self.choices.setdefault(payload.get("index", 0), Choice())
        choice.token_ids += payload.get("token_ids") or ()
        choice.logprobs += _logprobs(payload.get("logprobs") or {})
        choice.finish_reason = payload.get("finish_reason") or choice.finish_reason
        if payload.get("stop_reason") is not None:
            choice.stop_reason = payload["stop_reason"]
        if "message" in payload:
            choice.message = payload["message"]
        elif "delta" in payload:
            _extend_message(choice.message, payload["delta"] or {})
        elif "text" in payload:
            _extend_message(choice.message, {"content": payload["text"]})


def _logprobs(reported: dict[str, Any]) -> list[float]:
    """Return the log-probabilities of the sampled tokens, in the format of chats or completions."""
    if reported.get("content") is not None:
        return [token["logprob"] for token in reported["content"]]
    return reported.get("token_logprobs") or []


def _extend_message(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name in ("role", "content", "reasoning", "reasoning_content", "refusal"):
        if delta.get(name):
            message[name] = delta[name] if name == "role" else message.get(name, "") + delta[name]
    for call in delta.get("tool_calls") or ():
        _extend_call(message.setdefault("tool_calls", []), call)


def _extend_call(calls: list[dict[str, Any]], delta: dict[str, Any]) -> None:
    index = delta.get("index", len(calls))
    while len(calls) <= index:
        calls.append({"id": None, "function": {"name": None, "arguments": ""}})
    call, function = calls[index], delta.get("function") or {}
    call["id"] = delta.get("id") or call["id"]
    call["function"]["name"] = function.get("name") or call["function"]["name"]
    call["function"]["arguments"] += function.get("arguments") or ""
