"""An answer of the policy server: what is kept of it for the span, and what the agent gets to see.

A whole answer and the chunks of a stream end up the same: choices with their message, token ids and
log-probabilities, exactly as the server reported them.
"""

from dataclasses import dataclass, field
from typing import Any

from ltrain_train.gateway.request import ChatRequest


@dataclass(slots=True)
class Choice:
    message: dict[str, Any] = field(default_factory=dict)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None


@dataclass(slots=True)
class Answer:
    id: str | None = None
    prompt_token_ids: list[int] | None = None
    choices: dict[int, Choice] = field(default_factory=dict)
    usage: dict[str, Any] | None = None

    @property
    def finished(self) -> int:
        """How many choices have ended."""
        return sum(choice.finish_reason is not None for choice in self.choices.values())

    @property
    def ordered(self) -> list[Choice]:
        return [self.choices[index] for index in sorted(self.choices)]

    def take(self, payload: dict[str, Any], request: ChatRequest) -> None:
        """Keep what the span needs of an answer or a chunk; take out what was not asked for."""
        self.id = self.id or payload.get("id")
        self.usage = payload.get("usage") or self.usage
        if payload.get("prompt_token_ids") is not None:
            self.prompt_token_ids = payload["prompt_token_ids"]
        if not request.wants_token_ids:
            payload.pop("prompt_token_ids", None)
        if "model" in payload:
            payload["model"] = request.model
        for choice in payload.get("choices") or ():
            self._take_choice(choice, request)

    def _take_choice(self, payload: dict[str, Any], request: ChatRequest) -> None:
        choice = self.choices.setdefault(payload.get("index", 0), Choice())
        choice.token_ids += payload.get("token_ids") or ()
        logprobs = payload.get("logprobs")
        if logprobs:
            choice.logprobs += [token["logprob"] for token in logprobs.get("content") or ()]
        choice.finish_reason = payload.get("finish_reason") or choice.finish_reason
        if "message" in payload:
            choice.message = payload["message"]
        elif "delta" in payload:
            _extend(choice.message, payload["delta"] or {})
        if not request.wants_token_ids:
            payload.pop("token_ids", None)
        if not request.wants_logprobs:
            payload["logprobs"] = None


def _extend(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name in ("role", "content", "reasoning", "reasoning_content", "refusal"):
        if delta.get(name):
            message[name] = delta[name] if name == "role" else message.get(name, "") + delta[name]
    for call in delta.get("tool_calls") or ():
        _extend_call(message.setdefault("tool_calls", []), call)


def _extend_call(calls: list[dict[str, Any]], delta: dict[str, Any]) -> None:
    index = delta.get("index", len(calls))
    while len(calls) <= index:
        calls.append({"id": None, "function": {"name": None, "arguments": ""}})
    call, given = calls[index], delta.get("function") or {}
    call["id"] = delta.get("id") or call["id"]
    call["function"]["name"] = given.get("name") or call["function"]["name"]
    call["function"]["arguments"] += given.get("arguments") or ""
