"""One conversation as spans of the gen_ai conventions: an agent with its model calls and tools.

Ids are digests of what a file names, so that records which are imported again are stored once.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import md5
from typing import Any

from ltrain_collector.sources import spans
from ltrain_collector.sources.spans import Request, Score, SpanRecord

Part = dict[str, Any]
Message = dict[str, Any]
"""`{"role", "parts"}`, as in `gen_ai.input.messages`."""
USAGE = {
    "input": "gen_ai.usage.input_tokens",
    "output": "gen_ai.usage.output_tokens",
    "cached": "gen_ai.usage.cache_read.input_tokens",
    "reasoning": "gen_ai.usage.reasoning.output_tokens",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """A call of a model."""

    name: str
    """Its name in the session."""
    times: tuple[int, int]
    """Start and end, in nanoseconds since the epoch."""
    model: str
    prompt: Sequence[Message]
    answer: Sequence[Part]
    usage: Mapping[str, int | None] = field(default_factory=dict)
    """Counts of tokens by the names of `USAGE`."""
    response_id: str = ""
    finish_reason: str = ""
    error: str = ""
    """The message of a failure."""
    agent: str = ""
    """The agent's name; '' for the client's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a tool."""

    id: str
    times: tuple[int, int]
    """Start and end, in nanoseconds since the epoch."""
    name: str
    arguments: str
    result: str
    error: str = ""
    """The message of a failure."""
    agent: str = ""
    """The agent's name; '' for the client's."""


class Conversation:
    """Makes the spans of one session of an agent."""

    def __init__(self, client: str, session: str, version: str = "") -> None:
        self._client, self._session, self._version = client, session, version
        self._trace = md5(f"{client} {session}".encode()).hexdigest()
        self._root = self.span_id("agent")
        self._first = self._last = 0

    def span_id(self, name: str) -> str:
        """Return the id of the span of what has this name in the session."""
        return md5(f"{self._trace} {name}".encode()).hexdigest()[:16]

    def call(self, call: ModelCall) -> Request:
        """Return the span of a model call."""
        reason = call.finish_reason
        message = {"role": "assistant", "parts": call.answer, "finish_reason": reason}
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.agent.name": call.agent or self._client,
            "gen_ai.request.model": call.model,
            "gen_ai.response.id": call.response_id,
            "gen_ai.response.finish_reasons": [reason] if reason else None,
            "gen_ai.input.messages": json.dumps(call.prompt, ensure_ascii=False),
            "gen_ai.output.messages": json.dumps([message], ensure_ascii=False),
            **{USAGE[key]: count for key, count in call.usage.items()},
        }
        span_id = self.span_id(call.name)
        return self._request(f"chat {call.model}", span_id, call.times, attributes, call.error)

    def tool(self, call: ToolCall) -> Request:
        """Return the span of a tool call."""
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.agent.name": call.agent or self._client,
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.call.arguments": call.arguments,
            "gen_ai.tool.call.result": call.result,
        }
        span_id = self.span_id(f"tool {call.id}")
        name = f"execute_tool {call.name}"
        return self._request(name, span_id, call.times, attributes, call.error)

    def evaluation(self, name: str, value: float) -> Request:
        """Return the span of a score of the whole conversation."""
        score = Score(trace_id=self._trace, name=name, value=value, time=self._last)
        return spans.evaluation(self._client, score)

    def end(self) -> Iterator[Request]:
        """Yield the span of the agent, if it has called a model or a tool."""
        if self._last:
            attributes = {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": self._client,
            }
            times = (self._first, self._last)
            name = f"invoke_agent {self._client}"
            yield self._request(name, self._root, times, attributes)

    def _request(
        self,
        name: str,
        span_id: str,
        times: tuple[int, int],
        attributes: Mapping[str, Any],
        error: str = "",
    ) -> Request:
        self._first = min(self._first or times[0], times[0])
        self._last = max(self._last, *times)
        span = SpanRecord(
            trace_id=self._trace,
            span_id=span_id,
            parent_id="" if span_id == self._root else self._root,
            name=name,
            times=times,
            attributes={"gen_ai.conversation.id": self._session, **attributes},
            error=error,
        )
        return spans.request(self._client, span, self._version)


def text_part(text: str) -> Part:
    return {"type": "text", "content": text}


def request_part(call_id: str, name: str, arguments: Any) -> Part:
    """Return the part of an answer that requests a tool."""
    return {"type": "tool_call", "id": call_id, "name": name, "arguments": arguments}


def result_message(call_id: str, result: Any) -> Message:
    """Return the message with the result of a tool."""
    part = {"type": "tool_call_response", "id": call_id, "response": result}
    return {"role": "tool", "parts": [part]}
