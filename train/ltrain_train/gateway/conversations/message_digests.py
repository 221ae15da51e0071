"""Digests of messages, equal for what clients rewrite when they repeat a message.

* Thinking, cache markers, white space around a text and other JSON of equal arguments change
  nothing.
* Dates change nothing in a system prompt and in the first message: `DATE` is the rule.
* A text of more than `WHOLE_TEXT` characters counts by its ends and its length, so that a digest
  costs the same for any message.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import orjson

Message = Mapping[str, Any]
"""A message of a chat completion."""

SYSTEM_ROLES = ("system", "developer")
WHOLE_TEXT = 8192
"""Characters."""
DIGEST_SIZE = 16
PROFILED = 16
"""Messages of a history, evenly spaced, whose sizes are compared."""
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_DAY = r"(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
DATE = re.compile(
    rf"\b(?:{_DAY},? )?(?:\d{{4}}-\d\d?-\d\d?(?:[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?Z?)?"
    rf"|\d{{1,2}}/\d{{1,2}}/\d{{2,4}}|{_MONTH} \d{{1,2}},? \d{{4}}|\d{{1,2}} {_MONTH} \d{{4}})\b"
)
"""A date, with its weekday before it and the time after it."""
_THINKING = re.compile(r"\A\s*<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL)
"""Thinking that a server without a reasoning parser leaves in the text."""


def digest(*parts: bytes) -> bytes:
    """Return the digest of parts, each with its length."""
    sized = [piece for part in parts for piece in (len(part).to_bytes(4, "little"), part)]
    return blake2b(b"".join(sized), digest_size=DIGEST_SIZE).digest()


def answer_digest(message: Message) -> bytes:
    """Return the digest of an assistant's message: its text and its tool calls, without their ids.

    The result is empty if it has neither, as an answer of thinking alone.
    """
    text = without_thinking(text_of(message))
    calls = call_parts(message)
    if not text.strip() and not calls:
        return b""
    return digest(_shortened(text), *calls)


def call_parts(message: Message) -> list[bytes]:
    """Return the tools of a message's calls and their arguments, equal for equal values."""
    return [part for call in tool_calls(message) for part in _call_parts(call)]


def without_thinking(text: str) -> str:
    """Return a text without thinking at its beginning."""
    return _THINKING.sub("", text, count=1) if "<think" in text[:64] else text


def opening_digest(message: Message) -> bytes:
    """Return the digest of the first message of a conversation, without its dates."""
    text, size = _ends(text_of(message))
    return _opening(str(message.get("role")), text, size)


@lru_cache(maxsize=1024)  # each call of a conversation has the same one
def _opening(role: str, text: str, size: bytes) -> bytes:
    return digest(role.encode(), _encode(DATE.sub("", text)))


def ids_of_calls(message: Message) -> bytes:
    """Return the digest of the ids of a message's tool calls; empty if it has none."""
    ids = [str(call.get("id") or "").encode() for call in tool_calls(message)]
    return digest(*ids)[:8] if any(ids) else b""


def profile(messages: Sequence[Message]) -> int:
    """Return a hash of the sizes of messages; it costs little, and tells long histories apart."""
    step = len(messages) // PROFILED + 1
    sizes = [
        len(each.get("content") or "")
        for each in messages[::step]
        if each["role"] not in SYSTEM_ROLES
    ]
    return hash((len(messages), *sizes))  # of integers: the same in each process


def text_of(message: Message) -> str:
    """Return the text of a message, its parts separated by a line break."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(texts_of(message))


def texts_of(message: Message) -> Iterator[str]:
    """Yield the texts of a message's parts."""
    content = message.get("content")
    if isinstance(content, str):
        yield content
        return
    for part in content or ():
        text = part.get("text") if isinstance(part, dict) else None
        if isinstance(text, str):
            yield text


def tool_calls(message: Message) -> list[Mapping[str, Any]]:
    """Return the tool calls of a message."""
    calls = message.get("tool_calls")
    return [each for each in calls or () if isinstance(each, dict)]


def call_name(call: Mapping[str, Any]) -> str:
    """Return the tool of a call."""
    name = (call.get("function") or {}).get("name")
    return name if isinstance(name, str) else ""


def call_arguments(call: Mapping[str, Any]) -> Any:
    """Return the arguments of a call as a value; as text if they are not JSON."""
    arguments = (call.get("function") or {}).get("arguments")
    if not isinstance(arguments, str):
        return arguments
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments.strip()


def _call_parts(call: Mapping[str, Any]) -> tuple[bytes, bytes]:
    arguments = call_arguments(call) or {}
    try:
        encoded = orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # an integer beyond 64 bits, or a lone surrogate
        encoded = repr(arguments).encode(errors="surrogatepass")
    return call_name(call).encode(errors="surrogatepass"), encoded


def _shortened(text: str) -> bytes:
    """Return a text without white space around it, and a long one by its ends and length."""
    ends, size = _ends(text)
    return _encode(ends) + size


def _ends(text: str) -> tuple[str, bytes]:
    """Return the ends of a long text and its length, and a short one as it is."""
    text = text.strip()
    if len(text) <= WHOLE_TEXT:
        return text, b""
    half = WHOLE_TEXT // 2
    return text[:half] + text[-half:], str(len(text)).encode()


def _encode(text: str) -> bytes:
    return text.encode(errors="surrogatepass")
