"""Claude Code's session files, `~/.claude/projects/**/*.jsonl`, of its versions 1 and 2.

Each record has a `uuid` and the `parentUuid` before it, so that an edited conversation is a tree.
An answer is several records with one `message.id`, each with a part of it. What a sub-agent does
has `isSidechain`. Records without a message, such as summaries, are not in a conversation.
"""

from collections.abc import Iterator
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

KINDS = frozenset({"user", "assistant", "system", "summary", "file-history-snapshot"})
SUB_AGENT = "sub-agent"
CACHED = "cache_read_input_tokens"
SHOWN = 200
"""Characters of a failed tool's result in the span's status."""


class ClaudeCodeSession:
    """Reads one file; one that continues another session has records of both."""

    written_by: ClassVar[str] = "Claude Code: `~/.claude/projects/**/*.jsonl`"

    def __init__(self, modified: int) -> None:
        self._talks: dict[str, Conversation] = {}
        self._parents: dict[str, str] = {}
        self._messages: dict[str, list[Message]] = {}
        """The messages of a record, by its uuid."""
        self._times: dict[str, int] = {}
        self._answer: list[dict[str, Any]] = []
        """The records of the answer that is not complete yet."""
        self._requests: dict[str, tuple[str, str, int]] = {}
        """Name, arguments and time of each requested tool, by its call id."""

    @classmethod
    def reads(cls, record: dict[str, Any]) -> bool:
        named = "sessionId" in record or "leafUuid" in record or "messageId" in record
        return named and record.get("type") in KINDS and "payload" not in record

    def add(self, record: dict[str, Any]) -> Iterator[Request]:
        if record.get("type") == "assistant":
            if self._answer and self._answer[0]["message"]["id"] != record["message"]["id"]:
                yield from self._finish()
            self._answer.append(record)
            return
        yield from self._finish()
        if record.get("type") == "user":
            yield from self._user(record)
        elif uuid := record.get("uuid"):
            self._keep(uuid, record, [])

    def end(self) -> Iterator[Request]:
        yield from self._finish()
        for talk in self._talks.values():
            yield from talk.end()

    def _user(self, record: dict[str, Any]) -> Iterator[Request]:
        time, content = nanoseconds(record["timestamp"]), record["message"]["content"]
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        messages: list[Message] = []
        for block in blocks:
            if block["type"] == "tool_result":
                result = _result_text(block.get("content"))
                messages.append(result_message(block["tool_use_id"], result))
                yield self._tool(record, block, result, time)
            else:
                messages.append({"role": "user", "parts": [_part(block)]})
        self._keep(record["uuid"], record, messages)

    def _tool(
        self, record: dict[str, Any], block: dict[str, Any], result: str, time: int
    ) -> Request:
        call_id = block["tool_use_id"]
        name, arguments, start = self._requests.pop(call_id, ("unknown", "", time))
        call = ToolCall(
            id=call_id,
            times=(start, time),
            name=name,
            arguments=arguments,
            result=result,
            error=result[:SHOWN] or "the tool failed" if block.get("is_error") else "",
            agent=_agent(record),
        )
        return self._talk(record).tool(call)

    def _finish(self) -> Iterator[Request]:
        """Yield the model call whose answer is complete."""
        if not self._answer:
            return
        first, last = self._answer[0], self._answer[-1]
        parts = [_part(block) for record in self._answer for block in record["message"]["content"]]
        before = first.get("parentUuid") or ""
        end = nanoseconds(last["timestamp"])
        message, usage = last["message"], last["message"].get("usage") or {}
        failed = any(record.get("isApiErrorMessage") for record in self._answer)
        call = ModelCall(
            name=f"call {message['id']}",
            times=(min(self._times.get(before, end), end), end),
            model=message.get("model") or "unknown",
            prompt=self._history(before),
            answer=parts,
            usage={
                "input": _sum(usage, "input_tokens", "cache_creation_input_tokens", CACHED),
                "output": usage.get("output_tokens"),
                "cached": usage.get(CACHED),
            },
            response_id=message["id"],
            finish_reason=message.get("stop_reason") or "",
            error=parts[0].get("content", "the call failed") if failed and parts else "",
            agent=_agent(first),
        )
        yield self._talk(first).call(call)
        for part in parts:
            if part["type"] == "tool_call":
                self._requests[part["id"]] = (part["name"], as_text(part["arguments"]), end)
        for record in self._answer:
            is_last = record is last
            own = [{"role": "assistant", "parts": parts}] if is_last else []
            self._keep(record["uuid"], record, own)
        self._answer = []

    def _keep(self, uuid: str, record: dict[str, Any], messages: list[Message]) -> None:
        self._parents[uuid] = record.get("parentUuid") or ""
        self._messages[uuid] = messages
        if "timestamp" in record:
            self._times[uuid] = nanoseconds(record["timestamp"])

    def _history(self, uuid: str) -> list[Message]:
        """Return the messages of a record and those before it."""
        found: list[list[Message]] = []
        visited: set[str] = set()
        while uuid in self._messages and uuid not in visited:
            visited.add(uuid)
            found.append(self._messages[uuid])
            uuid = self._parents[uuid]
        return [message for messages in reversed(found) for message in messages]

    def _talk(self, record: dict[str, Any]) -> Conversation:
        session = record["sessionId"]
        if session not in self._talks:
            version = record.get("version") or ""
            self._talks[session] = Conversation("claude-code", session, version)
        return self._talks[session]


def _sum(usage: dict[str, Any], *names: str) -> int | None:
    counts = [usage[name] for name in names if isinstance(usage.get(name), int)]
    return sum(counts) if counts else None


def _agent(record: dict[str, Any]) -> str:
    return SUB_AGENT if record.get("isSidechain") else ""


def _part(block: dict[str, Any]) -> Part:
    match block["type"]:
        case "text":
            return text_part(block["text"])
        case "thinking":
            return {"type": "reasoning", "content": block["thinking"]}
        case "tool_use":
            return request_part(block["id"], block["name"], block["input"])
        case kind:  # an image or a document: its data is no text
            return {"type": kind}


def _result_text(content: Any) -> str:
    if isinstance(content, list):
        texts = [each.get("text") if isinstance(each, dict) else each for each in content]
        return "\n".join(str(text) for text in texts if text)
    return as_text(content) if content is not None else ""
