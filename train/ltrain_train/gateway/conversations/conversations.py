"""The conversations of calls that come without a trace.

A call belongs to the chain that it continues (`chains`), else it begins a chain: for a tool call of
another chain (`delegations`), in the session that its client names (`sessions`), or alone. The work
of a call depends on its new messages, not on its history.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from opentelemetry.context import Context
from opentelemetry.trace import Tracer

from ltrain_instrument.identity import Identity
from ltrain_train.gateway.apis import ClientCall
from ltrain_train.gateway.conversations.agent_names import AgentNames
from ltrain_train.gateway.conversations.chain_log import ChainLine, ChainLog, LinkLine, NameLine
from ltrain_train.gateway.conversations.chains import (
    Chain,
    ChainIndex,
    Conversation,
    Link,
    link_key,
)
from ltrain_train.gateway.conversations.delegations import Delegations, Opening, waiting_calls
from ltrain_train.gateway.conversations.message_digests import (
    Message,
    answer_digest,
    ids_of_calls,
    profile,
)
from ltrain_train.gateway.conversations.requests import ChatRequest, read_request
from ltrain_train.gateway.conversations.sessions import Sessions, new_conversation
from ltrain_train.gateway.conversations.span_ids import SpanIds
from ltrain_train.gateway.conversations.tool_results import (
    Ended,
    ToolSpans,
    conversation_attributes,
    parent_context,
)

PRODUCTION = Identity(mode="prod")


class Placement:
    """The place of one call in its conversation."""

    def __init__(
        self, conversations: "Conversations", chain: Chain, request: ChatRequest, tool_spans: int
    ) -> None:
        self._conversations, self._chain = conversations, chain
        self.tool_spans = tool_spans
        """Number of spans that were written for the tool results of the request."""
        self._owner, self._opening, self._request = request.owner, request.opening, request
        self._position = len(request.messages)
        self._profile = profile(request.messages)
        self._is_answered = False

    @property
    def attributes(self) -> Mapping[str, str]:
        """The attributes of the call's span."""
        return conversation_attributes(self._chain)

    @property
    def conversation(self) -> Conversation:
        """The conversation of the call."""
        return self._chain.conversation

    @contextmanager
    def starting(self) -> Iterator[Context]:
        """Yield the context in which the call's span starts."""
        with self._conversations.ids.choose(self._chain.conversation.trace):
            yield parent_context(self._chain)

    def answer(self, messages: Sequence[Message]) -> None:
        """Record the answer, one message for each choice."""
        self._is_answered = True
        histories = [answer_digest(each) or self._request.last for each in messages]
        with self._conversations.lock:
            for history, message in zip(histories, messages, strict=True):
                self._link(history, ids_of_calls(message))
                if self._request.has_tools:
                    calls = waiting_calls(self._chain, history, message, self._position)
                    self._conversations.delegations.wait(self._chain, calls)

    def leave(self) -> None:
        """Record that the call ends; an equal first request is a retry if it got no answer."""
        if not self._is_answered and not self._chain.keys:
            with self._conversations.lock:
                self._link(self._request.last, b"")

    def _link(self, history: bytes, calls: bytes) -> None:
        key = link_key(self._owner, self._opening, history)
        self._conversations.add(
            key, Link(self._chain, self._position, self._profile, calls, history)
        )


class Conversations:
    """The conversations of production, or of all attempts; usable from any thread."""

    def __init__(
        self,
        tracer: Tracer,
        ids: SpanIds,
        end: Ended,
        *,
        idle: float,
        folder: Path | None = None,
        session_fields: tuple[str, ...] = (),
    ) -> None:
        """Continue the conversations of an earlier process.

        Args:
            tracer: writes the spans of tool calls; `ids` is its generator.
            end: ends a span that must be written.
            idle: seconds without a call after which a conversation ends.
            folder: where they are kept; None: in memory only.
            session_fields: further headers and fields with a session.
        """
        self.ids, self.lock = ids, threading.Lock()
        """Held by the methods that say so."""
        self._fields = session_fields
        self._index, self._sessions, self._names = ChainIndex(idle), Sessions(idle), AgentNames()
        self.delegations = Delegations(self._index)
        self._tools = ToolSpans(tracer, ids, end)
        self._log = ChainLog(folder, self._names.lines) if folder else None
        if self._log is not None:
            self._restore(self._log)

    def place(
        self,
        call: ClientCall,
        headers: Mapping[str, str],
        key: str | None,
        identity: Identity = PRODUCTION,
    ) -> Placement:
        """Return the place of a chat, and write the spans of the tool results that it carries.

        Args:
            key: that of the call: conversations of two keys are never joined.
            identity: the attempt of the call, or production.
        """
        request = read_request(call, headers, key, self._fields, identity)
        with self.lock:
            now = time.time()
            self._index.forget(now)
            continued = self._continued(request, now)
            chain, tools = continued or (self._retried(request), 0)
            chain = chain or self._begin(request, now)
            self._index.touch(chain, now)
        return Placement(self, chain, request, tools)

    def add(self, key: bytes, link: Link) -> None:
        """Add a link, and write it to the file; the lock is held."""
        now, chain = time.time(), link.chain
        if self._log is not None:
            begun = [] if chain.keys else [_chain_line(chain)]
            self._log.append(*begun, _link_line(key, link, now))
        self._index.add(key, link, now)

    def close(self) -> None:
        """Close the file."""
        if self._log is not None:
            self._log.close()

    def _continued(self, request: ChatRequest, now: float) -> tuple[Chain, int] | None:
        """Return the chain that a request continues, and the number of spans of tool results."""
        place = request.owner, request.opening, request.messages, request.session
        found = self._index.find(*place)
        if found is None:
            return None
        link, answer = found
        tools = self._tools.write(link, request, answer)
        link.is_continued = True
        self.delegations.end_wait(link.chain, answer)
        if request.named is not None:
            changed = self._sessions.note_continued(request.session, link.chain)
            if changed is not None and self._log is not None:
                self._log.append(changed.line(request.session, request.owner))
        return link.chain, tools

    def _retried(self, request: ChatRequest) -> Chain | None:
        """Return the chain of an equal first request that got no answer."""
        key = link_key(request.owner, request.opening, request.last)
        return self._index.take(key, request.session)

    def _begin(self, request: ChatRequest, now: float) -> Chain:
        """Return a new chain."""
        agents, kind = self._names.client(request.client), request.kind
        is_new_family = kind.family not in agents.names
        chain = Chain(
            new_conversation(), request.owner, request.mark, kind.family, request.session, began=now
        )
        found = None
        if not (kind.is_utility or self.delegations.is_empty(request.owner)):
            found = self.delegations.find(_opening(request, is_new_family))
        if found is not None:
            above, waiting = found
            chain.conversation, chain.parent = above.conversation, waiting.span
            chain.agent = chain.agent or waiting.agent
            return chain
        chain.agent = chain.agent or agents.name(kind)
        self._begin_in_session(chain, request, now)
        if is_new_family and self._log is not None:
            self._log.append(*self._names.lines_of(request.client))
        return chain

    def _begin_in_session(self, chain: Chain, request: ChatRequest, now: float) -> None:
        """Set the conversation of a chain whose client names a session."""
        if request.named is None:
            return
        state, is_new = self._sessions.find(request.session, request.named, request.owner, now)
        chain.conversation = state.begin(chain)
        if is_new and self._log is not None:
            self._log.append(state.line(request.session, request.owner))

    def _restore(self, log: ChainLog) -> None:
        """Read the file."""
        latest: dict[str, Link] = {}
        chains: dict[str, Chain] = {}
        for line in log.read():
            if isinstance(line, ChainLine):
                chains[line.id] = _chain(line)
                self._sessions.restore_chain(chains[line.id])
            elif isinstance(line, LinkLine):
                if (chain := chains.get(line.chain)) is not None:
                    if before := latest.get(line.chain):
                        before.is_continued = True
                    latest[line.chain] = _link(chain, line)
                    self._index.add(bytes.fromhex(line.key), latest[line.chain], line.at)
            elif isinstance(line, NameLine):
                self._names.restore(line)
            else:
                self._sessions.restore(line)


def _opening(request: ChatRequest, is_new_family: bool) -> Opening:
    return Opening(
        owner=request.owner,
        family=request.kind.family,
        client_session=request.session,
        has_tools=request.has_tools,
        is_new_family=is_new_family,
        text=request.text,
    )


def _chain_line(chain: Chain) -> ChainLine:
    return ChainLine(
        id=chain.id,
        at=chain.began,
        trace=f"{chain.conversation.trace:032x}",
        session=chain.conversation.session,
        owner=chain.owner.hex(),
        agent=chain.agent,
        family=chain.family.hex(),
        client_session=chain.client_session.hex(),
        parent=None if chain.parent is None else f"{chain.parent:016x}",
        began=chain.conversation.began,
    )


def _chain(line: ChainLine) -> Chain:
    parent = None if line.parent is None else int(line.parent, 16)
    return Chain(
        Conversation(int(line.trace, 16), line.session, line.began),
        bytes.fromhex(line.owner),
        line.agent,
        bytes.fromhex(line.family),
        bytes.fromhex(line.client_session),
        parent,
        id=line.id,
        began=line.at,
    )


def _link_line(key: bytes, link: Link, now: float) -> LinkLine:
    return LinkLine(
        chain=link.chain.id,
        at=now,
        key=key.hex(),
        position=link.position,
        profile=link.profile,
        calls=link.calls.hex(),
        answer=link.answer.hex(),
    )


def _link(chain: Chain, line: LinkLine) -> Link:
    calls, answer = bytes.fromhex(line.calls), bytes.fromhex(line.answer)
    return Link(chain, line.position, line.profile, calls, answer)
