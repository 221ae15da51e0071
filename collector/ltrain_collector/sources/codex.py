"""Codex's session files, `~/.codex/sessions/**/rollout-*.jsonl`, of its versions 0.4x to 0.17x.

A record is `{timestamp, type, payload}`. A model call is what the model wrote (`response_item`)
between two inputs; its tokens are in a `token_usage_record`, or in older files in the next
`token_count`. A command failed if its exit code, which an event has, is not 0.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
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
from ltrain_collector.sources.spans import Request, as_text, nanoseconds

KINDS = frozenset(
    {
        *("session_meta", "response_item", "event_msg", "turn_context", "world_state"),
        *("compacted", "token_usage_record"),
    }
)
CALLS = {"function_call": "arguments", "custom_tool_call": "input", "local_shell_call": "action"}
"""The items that request a tool, with the key of its arguments."""
OUTPUT = "_output"
"""The end of the types of tools' results."""


class CodexSession:
    """Reads one session."""

    written_by: ClassVar[str] = "Codex: `~/.codex/sessions/**/*.jsonl`"

    def __init__(self, modified: int) -> None:
        self._talk = Conversation("codex", "")
        self._model = "unknown"
        self._history: list[Message] = []
        self._answer: list[Part] = []
        self._asked = self._answered = modified
        self._number = 0
        self._usage: dict[str, int | None] = {}
        self._response_id = ""
        self._held: ModelCall | None = None
        """The last model call: its tokens may still come."""
        self._requests: dict[str, tuple[str, str, int]] = {}
        """Name, arguments and time of each requested tool, by its call id."""
        self._failed: dict[str, str] = {}
        """Why a tool failed, by its call id."""

    @classmethod
    def reads(cls, record: dict[str, Any]) -> bool:
        return record.get("type") in KINDS and isinstance(record.get("payload"), dict)

    def add(self, record: dict[str, Any]) -> Iterator[Request]:
        payload, time = record["payload"], nanoseconds(record["timestamp"])
        match record["type"]:
            case "session_meta":
                self._talk = Conversation("codex", payload["id"], payload.get("cli_version", ""))
                instructions = payload.get("base_instructions") or {}
                if text := instructions.get("text") or payload.get("instructions"):
                    self._history.append({"role": "system", "parts": [text_part(text)]})
            case "turn_context":
                self._model = payload.get("model") or self._model
            case "response_item":
                yield from self._item(payload, time)
            case "token_usage_record":
                self._response_id = payload.get("response_id") or ""
                self._usage = _counts(payload["usage"])
                yield from self._finish()
            case "event_msg":
                self._event(payload)
            case "compacted":
                yield from self._finish()
                summary = text_part(str(payload.get("message") or ""))
                first = [each for each in self._history[:1] if each["role"] == "system"]
                self._history = [*first, {"role": "user", "parts": [summary]}]

    def end(self) -> Iterator[Request]:
        yield from self._finish()
        yield from self._release()
        yield from self._talk.end()

    def _item(self, item: dict[str, Any], time: int) -> Iterator[Request]:
        kind = item["type"]
        if kind == "message" and item["role"] == "assistant":
            self._write(time, *map(text_part, _texts(item["content"])))
        elif kind == "reasoning":
            texts = _texts(item.get("summary") or []) or _texts(item.get("content") or [])
            self._write(time, *({"type": "reasoning", "content": text} for text in texts))
        elif kind in CALLS:
            call_id, name = item.get("call_id") or item["id"], item.get("name") or "local_shell"
            arguments = item[CALLS[kind]]
            self._requests[call_id] = (name, as_text(arguments), time)
            self._write(time, request_part(call_id, name, arguments))
        elif kind == "message":
            yield from self._finish()
            role = "system" if item["role"] == "developer" else item["role"]
            parts = list(map(text_part, _texts(item["content"])))
            self._read(time, {"role": role, "parts": parts})
        elif kind.endswith(OUTPUT):
            yield from self._finish()
            yield from self._tool(item["call_id"], item.get("output"), time)

    def _tool(self, call_id: str, output: Any, time: int) -> Iterator[Request]:
        result = _result(output)
        self._read(time, result_message(call_id, result))
        name, arguments, start = self._requests.pop(call_id, ("unknown", "", time))
        failure = self._failed.pop(call_id, "") or _older_failure(output)
        times = (start, time)
        call = ToolCall(
            id=call_id, times=times, name=name, arguments=arguments, result=result, error=failure
        )
        yield self._talk.tool(call)

    def _write(self, time: int, *parts: Part) -> None:
        """Add parts of the model's answer."""
        self._answer += parts
        self._answered = time

    def _read(self, time: int, message: Message) -> None:
        """Add a message that the next call of the model reads."""
        self._history.append(message)
        self._asked = time

    def _finish(self) -> Iterator[Request]:
        """Hold the model call whose answer is complete, and yield the one before."""
        if not self._answer:
            return
        yield from self._release()
        self._number += 1
        self._held = ModelCall(
            name=f"call {self._number}",
            times=(min(self._asked, self._answered), self._answered),
            model=self._model,
            prompt=[*self._history],
            answer=self._answer,
            usage=self._usage,
            response_id=self._response_id,
        )
        self._history.append({"role": "assistant", "parts": self._answer})
        self._answer, self._usage, self._response_id = [], {}, ""

    def _release(self) -> Iterator[Request]:
        if self._held is not None:
            yield self._talk.call(self._held)
        self._held = None

    def _event(self, event: dict[str, Any]) -> None:
        item = event.get("item") or event
        code, call_id = item.get("exit_code"), item.get("id") or item.get("call_id")
        if code and call_id:
            self._failed[call_id] = f"exit code {code}"
        usage = (event.get("info") or {}).get("last_token_usage")
        if event.get("type") == "token_count" and usage:
            held = self._held if not self._answer else None
            if held is not None and not held.usage:
                self._held = replace(held, usage=_counts(usage))


def _counts(usage: dict[str, Any]) -> dict[str, int | None]:
    return {
        "input": usage.get("input_tokens"),
        "output": usage.get("output_tokens"),
        "cached": usage.get("cached_input_tokens"),
        "reasoning": usage.get("reasoning_output_tokens"),
    }


def _texts(content: Any) -> list[str]:
    parts = content if isinstance(content, list) else [{"text": content}]
    return [str(part["text"]) for part in parts if part.get("text")]


def _result(output: Any) -> str:
    """Return the text of a result; older files have JSON with the output and its exit code."""
    if isinstance(output, dict):
        output = output.get("content", output)
    if isinstance(output, list):
        return "\n".join(_texts(output))
    with suppress(ValueError, TypeError, AttributeError):
        return str(json.loads(output)["output"])
    return as_text(output)


def _older_failure(output: Any) -> str:
    if isinstance(output, dict) and output.get("success") is False:
        return "the tool failed"
    with suppress(ValueError, TypeError, AttributeError, KeyError):
        if code := json.loads(output)["metadata"]["exit_code"]:
            return f"exit code {code}"
    return ""
