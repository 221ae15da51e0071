"""The tool calls of a conversation, as a request that continues it reports them.

A request repeats the calls of an answer and has their results. Each result becomes a span
`execute_tool` with the id of its call, so that readers find the requester. The gateway does not see
when a tool began and ended: the span is a moment, the arrival of the result, and `ltrain.untimed`.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)

from ltrain_instrument import attributes
from ltrain_train.gateway.conversations.chains import Chain, Link
from ltrain_train.gateway.conversations.delegations import tool_span_id
from ltrain_train.gateway.conversations.message_digests import (
    Message,
    answer_digest,
    call_name,
    text_of,
    tool_calls,
)
from ltrain_train.gateway.conversations.requests import ChatRequest
from ltrain_train.gateway.conversations.span_ids import SpanIds

MAX_WRITTEN = 65_536
"""Spans whose ids are remembered, so that a repeated request does not write them again."""
FAILED = "tool_error"
"""The error type of a tool that failed as its client reports."""

Attributes = Mapping[str, Any]
Ended = Callable[[Callable[[], None]], None]
"""Ends a span, which must be written."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A call and its result."""

    span: int
    call: Mapping[str, Any]
    message: Message


class ToolSpans:
    """Writes the spans of tool calls, each once."""

    def __init__(self, tracer: Tracer, ids: SpanIds, end: Ended) -> None:
        self._tracer, self._ids, self._end = tracer, ids, end
        self._written: OrderedDict[int, None] = OrderedDict()

    def write(self, link: Link, request: ChatRequest, answer: int) -> int:
        """Write the spans of the results that a request carries after the answer with an index.

        Args:
            link: the link of this answer.

        Returns:
            the number of spans.
        """
        results = _results(link, request.messages[answer:])
        new = {each.span: each for each in results if each.span not in self._written}
        if not new:
            return 0
        failed = failed_calls(request.requested)
        known = {**request.identity.attributes(), **conversation_attributes(link.chain)}
        for result in new.values():
            self._end(self._start(link.chain, result, failed, known).end)
            self._written[result.span] = None
        while len(self._written) > MAX_WRITTEN:
            self._written.popitem(last=False)
        return len(new)

    def _start(
        self, chain: Chain, result: ToolResult, failed: frozenset[str], known: Attributes
    ) -> Span:
        values = {**known, **_attributes(result)}
        with self._ids.choose(chain.conversation.trace, result.span):
            name = f"execute_tool {call_name(result.call)}"
            context = parent_context(chain)
            span = self._tracer.start_span(name, context, SpanKind.INTERNAL, values)
        if str(result.call.get("id")) in failed:
            span.set_attribute("error.type", FAILED)
            span.set_status(StatusCode.ERROR, "the client reports an error")
        return span


def conversation_attributes(chain: Chain) -> Mapping[str, str]:
    """Return the attributes of all spans of a chain."""
    session = chain.conversation.session
    values = {attributes.CONVERSATION_ID: session, attributes.AGENT_NAME: chain.agent}
    if chain.parent is not None:
        values[attributes.DELEGATED_BY] = f"{chain.parent:016x}"
    return values


def parent_context(chain: Chain) -> Context:
    """Return the context of a chain's spans: below the tool call for which it works, if any."""
    if chain.parent is None:
        return Context()
    flags = TraceFlags(TraceFlags.SAMPLED)
    parent = SpanContext(chain.conversation.trace, chain.parent, is_remote=False, trace_flags=flags)
    return set_span_in_context(NonRecordingSpan(parent), Context())


def failed_calls(body: Mapping[str, Any]) -> frozenset[str]:
    """Return the ids of the calls whose results a request of Anthropic's API marks as errors."""
    failed = []
    for message in reversed(body.get("messages") or ()):
        content = message.get("content")
        if message.get("role") != "user" or not isinstance(content, list):
            break
        failed += [block.get("tool_use_id") for block in content if block.get("is_error") is True]
    return frozenset(str(id) for id in failed)


def _results(link: Link, messages: Sequence[Message]) -> Iterator[ToolResult]:
    requested: dict[str, tuple[Mapping[str, Any], bytes]] = {}
    history = link.answer
    for message in messages:
        if message["role"] == "assistant":
            history = history if message is messages[0] and history else answer_digest(message)
            requested |= {str(call.get("id")): (call, history) for call in tool_calls(message)}
        elif message["role"] == "tool":
            found = requested.pop(str(message.get("tool_call_id")), None)
            if found is not None:
                span = tool_span_id(link.chain, found[1], found[0])
                yield ToolResult(span, found[0], message)


def _attributes(result: ToolResult) -> Attributes:
    arguments = (result.call.get("function") or {}).get("arguments")
    values = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call_name(result.call),
        "gen_ai.tool.call.id": str(result.call.get("id") or ""),
        "gen_ai.tool.call.arguments": arguments if isinstance(arguments, str) else _json(arguments),
        "gen_ai.tool.call.result": _text(result.message),
        attributes.UNTIMED: True,
    }
    return {name: value for name, value in values.items() if value not in (None, "")}


def _text(message: Message) -> str:
    content = message.get("content")
    parts = content if isinstance(content, list) else ()
    has_others = any(part.get("type") != "text" for part in parts if isinstance(part, dict))
    return _json(content) if has_others else text_of(message)


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
