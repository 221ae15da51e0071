"""The evidence of a request on its conversation: its user, session, agent and messages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from ltrain_instrument.identity import Identity
from ltrain_train.gateway.apis import ClientCall
from ltrain_train.gateway.conversations.agent_names import (
    Kind,
    client_program,
    find_kind,
    marked_agent,
    tool_names,
)
from ltrain_train.gateway.conversations.client_sessions import ClientSession, find_session
from ltrain_train.gateway.conversations.message_digests import (
    SYSTEM_ROLES,
    Message,
    digest,
    opening_digest,
    texts_of,
)

OPENING_MESSAGES = 4
OPENING_TEXT = 1 << 16
"""The messages of a first request, and their characters, in which a task is searched."""


@dataclass(frozen=True)
class ChatRequest:
    """A chat that is placed in a conversation."""

    owner: bytes
    """The digest of its key."""
    named: ClientSession | None
    messages: list[dict[str, Any]]
    body: Mapping[str, Any]
    """The chat completion."""
    requested: Mapping[str, Any]
    """The request as the client sent it."""
    headers: Mapping[str, str]
    identity: Identity
    """Its attempt, or production."""

    @cached_property
    def session(self) -> bytes:
        """The session that it names, by digest; empty if it names none."""
        return digest(self.owner, self.named.id.encode()) if self.named else b""

    @cached_property
    def opening(self) -> bytes:
        """The digest of its first message that is not a system prompt."""
        spoken = (each for each in self.messages if each["role"] not in SYSTEM_ROLES)
        return opening_digest(next(spoken, self.messages[0]))

    @cached_property
    def last(self) -> bytes:
        """The digest that an equal request has."""
        return digest(b"unanswered", self.kind.family, opening_digest(self.messages[-1]))

    @property
    def has_tools(self) -> bool:
        """Whether its client runs tools."""
        return bool(tool_names(self.body))

    @cached_property
    def kind(self) -> Kind:
        """The kind of its agent."""
        return find_kind(self.body, self.messages)

    @property
    def client(self) -> bytes:
        """The program of its client, of this key, by digest."""
        return digest(self.owner, client_program(self.headers))

    @property
    def mark(self) -> str:
        """The name that the client gives the agent; empty if it gives none."""
        return marked_agent(self.headers)

    @property
    def text(self) -> str:
        """The text of its first messages."""
        return first_text(self.messages)


def read_request(
    call: ClientCall,
    headers: Mapping[str, str],
    key: str | None,
    fields: tuple[str, ...],
    identity: Identity,
) -> ChatRequest:
    """Return the evidence of a chat.

    Args:
        key: that of the call, whether it was required or not.
        fields: further headers and fields with a session.
    """
    requested = call.requested or call.body
    return ChatRequest(
        _owner(key or ""),
        find_session(headers, requested, fields),
        call.body["messages"],
        call.body,
        requested,
        headers,
        identity,
    )


@lru_cache(maxsize=1024)  # each call of a client has the same one
def _owner(key: str) -> bytes:
    return digest(key.encode(errors="surrogatepass"))


def first_text(messages: Sequence[Message]) -> str:
    """Return the text of the first messages, without the system prompt."""
    spoken = (each for each in messages[:OPENING_MESSAGES] if each["role"] not in SYSTEM_ROLES)
    return "\n".join(text for each in spoken for text in texts_of(each))[:OPENING_TEXT]
