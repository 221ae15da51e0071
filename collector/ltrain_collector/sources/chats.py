"""Chats: a conversation a record, as fine-tuning files, data sets and saved rollouts have it.

Each answer of the assistant is a model call that read the messages before it; one in a `prompt` is
not a call. A number `reward` or `score`, and each one in `scores` or `metrics`, is an evaluation.
Such a file has no times: those of a chat are its `created` (Unix seconds) or else the file's, with
a millisecond between two calls.
"""

import json
from collections.abc import Iterator, Mapping
from hashlib import md5
from typing import Any, ClassVar

from ltrain_collector.sources.conversation import (
    Conversation,
    Message,
    ModelCall,
    Part,
    ToolCall,
    request_part,
    result_message,
    text_part,
)
from ltrain_collector.sources.spans import MILLISECOND, Request, as_text

ROLES = {
    "human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant",
    "developer": "system", "observation": "tool", "function_call": "assistant",
}  # fmt: skip
"""ShareGPT's names of roles, and a newer one of OpenAI."""
SCORES = ("reward", "score")


class ChatFile:
    """Reads one file."""

    written_by: ClassVar[str] = (
        "chats: OpenAI's `{messages: [{role, content}]}`, ShareGPT's `{conversations: [{from, "
        "value}]}`, `{prompt, completion}` of TRL and verifiers, rLLM's `{steps: "
        "[{chat_completions}]}`"
    )

    def __init__(self, modified: int) -> None:
        self._modified = modified

    @classmethod
    def reads(cls, record: dict[str, Any]) -> bool:
        messages = [*_read_before(record), *_raw_messages(record)]
        return bool(messages) and all(isinstance(each, dict) for each in messages)

    def add(self, record: dict[str, Any]) -> Iterator[Request]:
        name = str(record.get("id") or md5(json.dumps(record, sort_keys=True).encode()).hexdigest())
        talk = Conversation("chat", name)
        created = record.get("created")
        time = int(created * 1e9) if isinstance(created, int | float) else self._modified
        history = list(map(_message, _read_before(record)))
        names: dict[str, tuple[str, str]] = {}
        for number, raw in enumerate(_raw_messages(record)):
            time += MILLISECOND
            message = _message(raw)
            if message["role"] == "assistant":
                model = str(raw.get("model") or record.get("model") or "unknown")
                yield talk.call(
                    ModelCall(
                        name=f"call {number}",
                        times=(time, time),
                        model=model,
                        prompt=history,
                        answer=message["parts"],
                    )
                )
                for part in message["parts"]:
                    if part["type"] == "tool_call":
                        names[part["id"]] = (part["name"], as_text(part["arguments"]))
            elif message["role"] == "tool":
                [part] = message["parts"]
                tool, arguments = names.get(part["id"], (str(raw.get("name") or "unknown"), ""))
                yield talk.tool(
                    ToolCall(
                        id=part["id"] or f"message {number}",
                        times=(time, time),
                        name=tool,
                        arguments=arguments,
                        result=as_text(part["response"]),
                    )
                )
            history = [*history, message]
        yield from (talk.evaluation(name, value) for name, value in _scores(record))
        yield from talk.end()

    def end(self) -> Iterator[Request]:
        yield from ()


def _raw_messages(record: Mapping[str, Any]) -> list[Any]:
    steps = record.get("steps")
    if isinstance(steps, list) and steps and isinstance(steps[-1], dict):
        found = steps[-1].get("chat_completions")
    elif "prompt" in record:
        found = _as_messages(record.get("completion"), "assistant")
    else:
        found = record.get("messages", record.get("conversations"))
    return found if isinstance(found, list) else []


def _read_before(record: Mapping[str, Any]) -> list[Any]:
    """Return the messages of a prompt, whose answers are not calls."""
    has_completion = "prompt" in record and "completion" in record
    return _as_messages(record["prompt"], "user") if has_completion else []


def _as_messages(value: Any, role: str) -> list[Any]:
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return value if isinstance(value, list) else []


def _message(raw: dict[str, Any]) -> Message:
    role = str(raw.get("role") or raw.get("from"))
    role, content = ROLES.get(role, role), raw.get("content", raw.get("value"))
    if role == "tool":
        return result_message(str(raw.get("tool_call_id") or ""), content)
    parts = list(map(_part, content if isinstance(content, list) else [content]))
    for call in raw.get("tool_calls") or ():
        function = call["function"]
        parts.append(request_part(call["id"], function["name"], _arguments(function)))
    return {"role": role, "parts": [part for part in parts if part]}


def _part(content: Any) -> Part:
    if isinstance(content, dict):
        kind = str(content.get("type") or "")
        return text_part(str(content["text"])) if "text" in content else {"type": kind}
    return text_part(str(content)) if content else {}


def _arguments(function: dict[str, Any]) -> Any:
    try:
        return json.loads(function["arguments"])
    except (TypeError, ValueError):
        return function["arguments"]


def _scores(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    named = {name: record.get(name) for name in SCORES}
    for several in ("scores", "metrics"):
        named |= dict(record.get(several) or {})
    for name, value in named.items():
        if isinstance(value, int | float):  # true and false are 1 and 0
            yield name, float(value)
