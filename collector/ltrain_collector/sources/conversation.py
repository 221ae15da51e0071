"""One conversation as spans of the gen_ai conventions: an agent with its model calls and tools.

Ids are digests of what a file names, so that records which are imported again are stored once.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import md5
from typing import Any

Part = dict[str, Any]
Message = dict[str, Any]
"""`{"role", "parts"}`, as in `gen_ai.input.messages`."""
Request = dict[str, Any]
"""An OTLP request for traces, as JSON."""

OK, ERROR = 1, 2
"""Codes of a span's status."""
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
        attributes = {
            "gen_ai.evaluation.name": name,
            "gen_ai.evaluation.score.value": value,
            "ltrain.reward.scope": "rollout",
        }
        times = (self._last, self._last)
        span_id = self.span_id(f"evaluation {name}")
        return self._request("gen_ai.evaluation.result", span_id, times, attributes)

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
        start, end = times[0], max(times)
        self._first = min(self._first or start, start)
        self._last = max(self._last, end)
        span = {
            "traceId": self._trace,
            "spanId": span_id,
            "parentSpanId": "" if span_id == self._root else self._root,
            "name": name,
            "kind": 1,
            "startTimeUnixNano": str(start),
            "endTimeUnixNano": str(end),
            "attributes": encode_attributes(
                {"gen_ai.conversation.id": self._session, **attributes}
            ),
            "status": {"code": ERROR, "message": error} if error else {"code": OK},
        }
        resource = {"service.name": self._client, "service.version": self._version}
        scope = {"name": f"ltrain.import.{self._client}"}
        return {
            "resourceSpans": [
                {
                    "resource": {"attributes": encode_attributes(resource)},
                    "scopeSpans": [{"scope": scope, "spans": [span]}],
                }
            ]
        }


def encode_attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return attributes as OTLP's JSON has them, without empty ones."""
    present = {key: value for key, value in values.items() if value not in (None, "", [])}
    return [{"key": key, "value": _encode(value)} for key, value in present.items()]


def _encode(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_encode(each) for each in value]}}
    return {"stringValue": str(value)}


def text_part(text: str) -> Part:
    return {"type": "text", "content": text}


def request_part(call_id: str, name: str, arguments: Any) -> Part:
    """Return the part of an answer that requests a tool."""
    return {"type": "tool_call", "id": call_id, "name": name, "arguments": arguments}


def result_message(call_id: str, result: Any) -> Message:
    """Return the message with the result of a tool."""
    part = {"type": "tool_call_response", "id": call_id, "response": result}
    return {"role": "tool", "parts": [part]}


def as_text(value: Any) -> str:
    """Return a value as text: itself, or JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def nanoseconds(time: str) -> int:
    """Return a time of ISO 8601 in nanoseconds since the epoch."""
    return round(datetime.fromisoformat(time).timestamp() * 1e6) * 1000
