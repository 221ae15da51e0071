"""The turns of attempts: the token ids of each call's prompt and answer, found by its messages.

An answer counts by its text without thinking and by its tool calls, whatever the JSON of their
arguments. Every other message counts as the client sent it.
"""

import time
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from ltrain_train.gateway.conversations.message_digests import (
    Message,
    call_parts,
    digest,
    text_of,
    without_thinking,
)

MAX_BYTES = 256 << 20
"""Bytes of all turns; the turn that is unused for the longest time is forgotten first."""
TURN_BYTES = 400
"""Bytes of a turn apart from its ids."""
IDLE = 3600.0
"""Seconds after which an unused turn is forgotten."""
PROMPT_FIELDS = (
    *("tools", "tool_choice", "response_format", "documents", "reasoning_effort"),
    *("chat_template", "chat_template_kwargs", "add_generation_prompt", "add_special_tokens"),
)
"""Fields of a chat, beside its messages, that vLLM may render into the prompt."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A call that has been answered."""

    ids: "array[int]"
    """The prompt and the sampled answer."""
    end: int | None
    """The id by which the policy ended the answer; None if the answer was cut."""
    fields: bytes
    """The digest of the `PROMPT_FIELDS`."""


@dataclass(frozen=True, slots=True)
class History:
    """The messages of a chat as keys of turns."""

    keys: tuple[bytes, ...]
    """The digest of the messages up to each one."""
    answers: tuple[int, ...]
    """The indices of the assistant's messages."""
    fields: bytes
    """The digest of the `PROMPT_FIELDS`."""

    def answered(self, message: Message) -> bytes:
        """Return the key of the chat with its answer."""
        return digest(self.keys[-1], _message_digest({**message, "role": "assistant"}))


def read_history(owner: bytes, body: Mapping[str, Any]) -> History:
    """Return the keys of a chat; chats of two owners have no equal key."""
    keys, messages = [owner], body["messages"]
    for message in messages:
        keys.append(digest(keys[-1], _message_digest(message)))
    answers = [at for at, each in enumerate(messages) if each.get("role") == "assistant"]
    fields = [body.get(name) for name in PROMPT_FIELDS]
    return History(tuple(keys[1:]), tuple(answers), digest(_encode(fields)))


@dataclass(slots=True)
class KnownTurns:
    """The turns of all attempts, bounded in bytes and in time."""

    max_bytes: int = MAX_BYTES
    _turns: OrderedDict[bytes, tuple[float, Turn]] = field(default_factory=OrderedDict)
    _bytes: int = 0

    def find(self, history: History) -> tuple[Turn, int] | None:
        """Return the last known turn in a chat, and the index of its answer."""
        for at in reversed(history.answers):
            known = self._turns.get(history.keys[at])
            if known is not None:
                self._turns[history.keys[at]] = time.monotonic(), known[1]
                self._turns.move_to_end(history.keys[at])
                return known[1], at
        return None

    def add(self, key: bytes, turn: Turn) -> None:
        """Add a turn, and forget those beyond the limits."""
        self._drop(key)
        self._turns[key] = time.monotonic(), turn
        self._bytes += _size(turn)
        while self._turns:
            oldest = next(iter(self._turns))
            used = self._turns[oldest][0]
            if self._bytes <= self.max_bytes and used + IDLE >= time.monotonic():
                break
            self._drop(oldest)

    def _drop(self, key: bytes) -> None:
        dropped = self._turns.pop(key, None)
        if dropped is not None:
            self._bytes -= _size(dropped[1])


def make_turn(prompt: Sequence[int], answer: Sequence[int], history: History, *, cut: bool) -> Turn:
    """Return the turn of an answered call."""
    end = None if cut or not answer else answer[-1]
    return Turn(array("I", [*prompt, *answer]), end, history.fields)


def _size(turn: Turn) -> int:
    return turn.ids.itemsize * len(turn.ids) + TURN_BYTES


def _message_digest(message: Message) -> bytes:
    if message.get("role") != "assistant":
        return digest(_encode(message))
    text = without_thinking(text_of(message)).strip()
    return digest(b"assistant", text.encode(errors="surrogatepass"), *call_parts(message))


def _encode(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # an integer beyond 64 bits, or a lone surrogate
        return repr(value).encode(errors="surrogatepass")
