"""Conversations by content: a call that repeats an earlier call and its answer continues it.

`ConversationChain` is the rule; `ConversationProcessor` applies it to the model calls of a process
that have no parent, session or rollout, and names their conversation in the span.
"""

import json
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any
from uuid import uuid4

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from ltrain_instrument.attributes import CONVERSATION_ID, CONVERSATION_PREFIX, ROLLOUT_ID
from ltrain_instrument.privacy import SpanField, write_span_fields

MAX_HISTORIES = 16_384
"""Histories that are kept, each as a digest of 16 bytes; the oldest beyond it are forgotten."""
MAX_EQUAL = 64
"""Conversations with one history, such as the same question again and again; the latest count."""
INPUT, OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
NAMED = (CONVERSATION_ID, "session.id", ROLLOUT_ID)
NAMED_BY_TRACELOOP = (
    "traceloop.association.properties.session_id",
    "traceloop.association.properties.thread_id",
)
THINKING = ("reasoning", "thinking", "redacted_thinking")
"""Types of parts that clients leave out when they repeat an answer."""
IGNORED = ("finish_reason", "name")
"""Fields of a message that clients do not repeat."""

Message = Mapping[str, Any]
"""A message of OpenTelemetry's semantic conventions: `role` and `parts`."""


class ConversationChain:
    """The conversations of calls, in any thread.

    Two calls with equal histories may be of two conversations: of the open ones the oldest goes on
    first. A call that repeats a history which has gone on already is a fork of that conversation.
    """

    def __init__(self, seed: bytes = b"") -> None:
        """Start without conversations; chains with different seeds never meet."""
        self._seed = blake2b(seed, digest_size=16).digest()
        self._open: OrderedDict[bytes, deque[str]] = OrderedDict()
        """Conversations by the digest of a history that one of their calls has left."""
        self._lock = threading.Lock()

    def add(self, prompt: Sequence[Message], answer: Sequence[Message]) -> str:
        """Return the id of the conversation of a call, a new one if it continues none."""
        histories = list(self._digests((*prompt, *answer)))
        with self._lock:
            conversation = self._find(histories[: len(prompt)]) or new_conversation()
            if answer:
                self._open.setdefault(histories[-1], deque(maxlen=MAX_EQUAL)).append(conversation)
                self._open.move_to_end(histories[-1])
            while len(self._open) > MAX_HISTORIES:
                self._open.popitem(last=False)
        return conversation

    def _find(self, histories: Sequence[bytes]) -> str | None:
        """Return the conversation that left the longest of these histories."""
        for history in reversed(histories):
            if conversations := self._open.get(history):
                self._open.move_to_end(history)
                is_shared = len(conversations) > 1
                return conversations.popleft() if is_shared else conversations[0]
        return None

    def _digests(self, messages: Sequence[Message]) -> Iterator[bytes]:
        """Yield the digest of each beginning of a history, the shortest first."""
        digest = self._seed
        for message in messages:
            text = json.dumps(_comparable(message), sort_keys=True, default=str)
            encoded = text.encode("utf-8", "surrogatepass")
            digest = blake2b(digest + encoded, digest_size=16).digest()
            yield digest


def new_conversation() -> str:
    """Return the id of a new conversation."""
    return f"{CONVERSATION_PREFIX}{uuid4().hex[:16]}"


class ConversationProcessor(SpanProcessor):
    """Names the conversation of a call; it stands before the processors that change its content."""

    def __init__(self) -> None:
        self._chain = ConversationChain()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing: the answer is known when the call ends."""

    def on_end(self, span: ReadableSpan) -> None:
        """Name the conversation of a model call that stands alone."""
        values = span.attributes or {}
        is_named = any(name in values for name in (*NAMED, *NAMED_BY_TRACELOOP))
        if span.parent is not None or is_named:
            return
        prompt = _messages(values.get(INPUT))
        if not prompt:
            return
        with suppress(RecursionError):  # of deeply nested arguments: the agent's call goes on
            conversation = self._chain.add(prompt, _messages(values.get(OUTPUT)))
            write_span_fields(span, {SpanField("attribute", 0, CONVERSATION_ID): conversation})

    def shutdown(self) -> None:
        """Do nothing: nothing is buffered."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Return True: nothing is buffered."""
        return True


def _messages(text: Any) -> list[Message]:
    """Return the messages of an attribute; [] if it is not a list of messages."""
    try:
        messages = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return []
    is_list = isinstance(messages, list) and all(isinstance(each, dict) for each in messages)
    return messages if is_list else []


def _comparable(message: Message) -> dict[str, Any]:
    """Return a message without what clients change when they repeat it."""
    parts = message.get("parts")
    fields = {name: value for name, value in message.items() if name not in IGNORED}
    if isinstance(parts, list):
        fields["parts"] = [part for part in map(_comparable_part, parts) if part]
    return fields


def _comparable_part(part: Any) -> Any:
    """Return a part in a comparable form; None for reasoning and for empty text."""
    if not isinstance(part, dict) or part.get("type") in THINKING:
        return None
    fields = {name: value for name, value in part.items() if value is not None}
    for name, value in fields.items():
        if isinstance(value, str):
            fields[name] = _parsed(value) if name == "arguments" else value.strip()
    return None if fields.get("type") == "text" and not fields.get("content") else fields


def _parsed(arguments: str) -> Any:
    """Return a tool's arguments as an object: clients repeat its JSON with other spaces."""
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments.strip()
