"""The session that a client names in a request: a header, or a field of the body.

`HEADERS` and `FIELDS` are the table; `LTRAIN_SESSION_FIELDS` extends it. A client may send one id
for all of its users, so an id is evidence: see `sessions`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

MAX_ID = 128
"""Characters of an id that a span has; a longer one is replaced by its digest."""
HEADER_PREFIX = "x-session-"
"""The beginning of the names of further headers that have a session."""
HEADERS = frozenset(
    (
        *(
            "session_id",
            "session-id",
            "conversation_id",
            "conversation-id",
            "thread_id",
            "thread-id",
        ),
        *("x-conversation-id", "x-thread-id", "x-chat-id", "x-claude-code-session-id"),
        *(
            "x-opencode-session",
            "x-litellm-session-id",
            "x-openwebui-chat-id",
            "helicone-session-id",
        ),
        *("x-roo-task-id", "x-task-id", "langfuse_session_id"),
    )
)
FIELDS = ("conversation", "session_id", "conversation_id", "litellm_session_id")
METADATA = (
    *("session_id", "sessionId", "conversation_id", "conversationId", "thread_id", "taskId"),
)
"""Fields of `metadata`."""
BUCKET = "prompt_cache_key"
"""The field of an id that some clients set to the conversation, and others to a constant."""
USER = "user_id"
"""Anthropic's field of a user in `metadata`, in which Claude Code names the session too."""
_SESSION_OF_USER = re.compile(r"_session_([0-9A-Za-z-]{8,64})$")


@dataclass(frozen=True, slots=True)
class ClientSession:
    """A session as a request names it."""

    id: str
    is_bucket: bool = False
    """Whether the id may hold for many conversations, so that it only groups what belongs
    together."""


def find_session(
    headers: Mapping[str, str], body: Mapping[str, Any], further: tuple[str, ...] = ()
) -> ClientSession | None:
    """Return the session that a request names; None if it names none.

    Args:
        further: headers and paths of fields that are read first.
    """
    for text in _named(headers, body, further):
        if id := _readable(text):
            return ClientSession(id)
    bucket = _readable(body.get(BUCKET))
    return ClientSession(bucket, is_bucket=True) if bucket else None


def _named(
    headers: Mapping[str, str], body: Mapping[str, Any], further: tuple[str, ...]
) -> Iterator[Any]:
    for name in further:
        yield headers.get(name.lower()) or _field(body, name)
    for name, value in headers.items():
        if name in HEADERS or name.startswith(HEADER_PREFIX):
            yield value
    for name in FIELDS:
        if name in body:
            yield body[name]
            yield _field(body, f"{name}.id")
    if isinstance(metadata := body.get("metadata"), dict):
        yield from map(metadata.get, METADATA)
        yield _session_of_user(metadata.get(USER))


def _field(body: Mapping[str, Any], path: str) -> Any:
    value: Any = body
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _session_of_user(user: Any) -> Any:
    """Return the session in `metadata.user_id`: its last part, or a field of its JSON."""
    if not isinstance(user, str):
        return None
    if user.startswith("{"):
        try:
            parsed = orjson.loads(user)
        except orjson.JSONDecodeError:
            return None
        return parsed.get("session_id") if isinstance(parsed, dict) else None
    match = _SESSION_OF_USER.search(user)
    return match[1] if match else None


def _readable(value: Any) -> str:
    """Return an id as a span may have it; empty if the value is not an id."""
    if not isinstance(value, str) or not (text := value.strip()):
        return ""
    if len(text) <= MAX_ID and text.isprintable():
        return text
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
