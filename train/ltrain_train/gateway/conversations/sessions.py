"""Conversations by the session that clients name.

A session holds all chains that name it: the agent, its utility calls, and what follows a
compaction. It is disbelieved when it holds several conversations at once: a chain goes on after
another one of the same kind of agent began. Chains that begin later are conversations of their own
then. Of a bucket (`prompt_cache_key`) each kind of agent has one chain.
"""

import time
from collections import OrderedDict
from dataclasses import dataclass, field
from random import getrandbits

from ltrain_instrument.attributes import CONVERSATION_PREFIX
from ltrain_train.gateway.conversations.chain_log import SessionLine
from ltrain_train.gateway.conversations.chains import Chain, Conversation
from ltrain_train.gateway.conversations.client_sessions import ClientSession

MAX_SESSIONS = 16_384
MAX_FAMILIES = 64
"""Kinds of agents of one session that are remembered."""


@dataclass(slots=True, eq=False)
class SessionState:
    """A session of one owner."""

    conversation: Conversation
    is_bucket: bool
    active: float
    number: int = 1
    """It counts up each time the session begins again after an idle end."""
    is_shared: bool = False
    """Whether several conversations name it."""
    latest: dict[bytes, Chain] = field(default_factory=dict)
    """The chain of each kind of agent that began last."""

    def begin(self, chain: Chain) -> Conversation:
        """Return the conversation of a chain that begins."""
        is_alone = self.is_shared or (self.is_bucket and chain.family in self.latest)
        self.remember(chain)
        return new_conversation() if is_alone else self.conversation

    def remember(self, chain: Chain) -> None:
        """Remember a chain that began."""
        if len(self.latest) < MAX_FAMILIES or chain.family in self.latest:
            self.latest[chain.family] = chain

    def line(self, key: bytes, owner: bytes) -> SessionLine:
        """Return the session as a line of the file."""
        return SessionLine(
            key=key.hex(),
            owner=owner.hex(),
            at=self.active,
            trace=f"{self.conversation.trace:032x}",
            session=self.conversation.session,
            number=self.number,
            is_bucket=self.is_bucket,
            is_shared=self.is_shared,
            began=self.conversation.began,
        )


class Sessions:
    """The sessions that clients name, bounded in number and in time."""

    def __init__(self, idle: float) -> None:
        self._idle = idle
        self._states: OrderedDict[bytes, SessionState] = OrderedDict()
        self._owners: OrderedDict[str, bytes] = OrderedDict()
        """The owner who named a session first: others get another id for theirs."""

    def find(
        self, key: bytes, named: ClientSession, owner: bytes, now: float
    ) -> tuple[SessionState, bool]:
        """Return the session with a key, and whether it begins: first, or after an idle end."""
        state = self._states.get(key)
        is_new = state is None or state.active + self._idle < now
        if state is None or is_new:
            state = self._new(state, named, owner, now)
            self._states[key] = state
        state.active = now
        self._states.move_to_end(key)
        if len(self._states) > MAX_SESSIONS:
            self._states.popitem(last=False)
        return state, is_new

    def note_continued(self, key: bytes, chain: Chain) -> SessionState | None:
        """Note that a chain goes on; return its session if it is disbelieved from now on."""
        state = self._states.get(key)
        if state is None:
            return None
        state.active = time.time()
        latest = state.latest.get(chain.family)
        if state.is_shared or latest is None or latest is chain or chain.parent is not None:
            return None
        state.is_shared = latest.began > chain.active
        return state if state.is_shared else None

    def restore(self, line: SessionLine) -> None:
        """Add a session of an earlier process."""
        conversation = Conversation(int(line.trace, 16), line.session, line.began)
        key = bytes.fromhex(line.key)
        before = self._states.get(key)
        state = SessionState(conversation, line.is_bucket, line.at, line.number, line.is_shared)
        if before is not None and before.conversation == conversation:
            state.latest = before.latest
        self._states[key] = state
        if not line.is_bucket and "@" not in line.session:
            self._owners.setdefault(line.session, bytes.fromhex(line.owner))

    def restore_chain(self, chain: Chain) -> None:
        """Add a chain of an earlier process to its session."""
        state = self._states.get(chain.client_session)
        if state is not None and chain.parent is None:
            state.remember(chain)

    def _new(
        self, before: SessionState | None, named: ClientSession, owner: bytes, now: float
    ) -> SessionState:
        number = 1 if before is None else before.number + 1
        conversation = new_conversation(None if named.is_bucket else self._name(named.id, owner))
        if number > 1 and not named.is_bucket:
            conversation = new_conversation(f"{conversation.session}.{number}")
        is_shared = before is not None and before.is_shared
        return SessionState(conversation, named.is_bucket, now, number, is_shared)

    def _name(self, id: str, owner: bytes) -> str:
        """Return the session's id in spans: the client's, unless another owner has it."""
        first = self._owners.setdefault(id, owner)
        self._owners.move_to_end(id)
        if len(self._owners) > 4 * MAX_SESSIONS:
            self._owners.popitem(last=False)
        return id if first == owner else f"{id}@{owner.hex()[:8]}"


def new_conversation(session: str | None = None) -> Conversation:
    """Return a conversation with a new trace, and with a new session unless it is named."""
    session = session or f"{CONVERSATION_PREFIX}{getrandbits(64):016x}"
    return Conversation(getrandbits(127) + 1, session, time.time())
