"""An answer of the policy server, gathered: the same from a whole answer as from a stream's chunks.

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
        """The choices by their index."""
        return [self.choices[index] for index in sorted(self.choices)]

    def take(self, payload: dict[str, Any]) -> None:
        """Keep what the span needs of an answer or a chunk."""
        self.id = self.id or payload.get("id")
        self.usage = payload.get("usage") or self.usage
        self._take_prompt(payload)
        for choice in payload.get("choices") or ():
            self._take_prompt(choice)  # where completions say it
            self._take_choice(choice)

    def _take_prompt(self, payload: dict[str, Any]) -> None:
        if payload.get("prompt_token_ids") is not None:
            self.prompt_token_ids = payload["prompt_token_ids"]

    def _take_choice(self, payload: dict[str, Any]) -> None:
        choice = self.choices.setdefault(payload.get("index", 0), Choice())
        choice.token_ids += payload.get("token_ids") or ()
        choice.logprobs += _logprobs(payload.get("logprobs") or {})
        choice.finish_reason = payload.get("finish_reason") or choice.finish_reason
        if "message" in payload:
            choice.message = payload["message"]
        elif "delta" in payload:
            _extend(choice.message, payload["delta"] or {})
        elif "text" in payload:
            _extend(choice.message, {"content": payload["text"]})


def _logprobs(said: dict[str, Any]) -> list[float]:
    """Give the sampled tokens' log-probabilities, in the words of chats or of completions."""
    if said.get("content") is not None:
        return [token["logprob"] for token in said["content"]]
    return said.get("token_logprobs") or []


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
