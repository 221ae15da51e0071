"""Chains of calls, each of which begins with the messages and the answer of one before.

A link stands for the history that a call has left. It is found by the opening of the history and
its last answer, so that the cost depends on the new messages only. Of several links the ids of tool
calls, the sizes of all messages and the length of the history decide; else the oldest link that no
call has continued yet. A call that continues an earlier link of a chain is a fork of it.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import getrandbits

from ltrain_train.gateway.conversations.message_digests import (
    Message,
    answer_digest,
    digest,
    ids_of_calls,
    profile,
)

MAX_CHAINS = 16_384
MAX_LINKS = 131_072
"""Links of all chains, about 350 bytes each; beyond it the chains that are idle longest go."""
MAX_CHAIN_LINKS = 2_048
"""Links of one chain; the oldest beyond it are forgotten."""
MAX_EQUAL = 64
"""Links with one key, such as the same question again and again; the latest count."""
MAX_STEPS = 16
"""Answers of a request that a search compares, from its end."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The trace and the session of all spans of a conversation."""

    trace: int
    session: str
    began: float = field(compare=False)
    """Unix seconds of its first call."""


@dataclass(slots=True, eq=False)
class Chain:
    """The calls of one agent of a conversation."""

    conversation: Conversation
    owner: bytes
    """The digest of its key: chains of two owners never meet."""
    agent: str
    family: bytes
    """The digest of its kind of agent."""
    client_session: bytes = b""
    """The session that its requests name, by digest; empty if they name none."""
    parent: int | None = None
    """The span of the tool call for which it works; None for the agent of a user."""
    active: float = 0.0
    """Seconds since the epoch of its latest call."""
    id: str = field(default_factory=lambda: f"{getrandbits(64):016x}")
    began: float = 0.0
    keys: deque[bytes] = field(default_factory=deque)
    """The keys of its links, the oldest first."""


@dataclass(slots=True, eq=False)
class Link:
    """A history that a call has left."""

    chain: Chain
    position: int
    """The index of the answer among the messages of a call that continues it."""
    profile: int
    """The sizes of the messages before the answer: see `message_digests.profile`."""
    calls: bytes
    """The ids of the answer's tool calls: see `message_digests.ids_of_calls`."""
    answer: bytes
    """The digest of the answer."""
    is_continued: bool = False


class ChainIndex:
    """The links of all chains, bounded in number and in time."""

    def __init__(self, idle: float) -> None:
        """Start empty; a chain without a call for `idle` seconds ends."""
        self._idle = idle
        self._links: dict[bytes, list[Link]] = {}
        self._chains: OrderedDict[str, Chain] = OrderedDict()
        self._size = 0

    def find(
        self, owner: bytes, opening: bytes, messages: Sequence[Message], client_session: bytes
    ) -> tuple[Link, int] | None:
        """Return the link that a request continues, and the index of its answer there.

        Args:
            client_session: only chains with this session count.
        """
        steps = 0
        for position in range(len(messages) - 1, -1, -1):
            if messages[position]["role"] != "assistant":
                continue
            answer = answer_digest(messages[position])
            links = self._links.get(link_key(owner, opening, answer)) if answer else None
            own = [each for each in links or () if each.chain.client_session == client_session]
            if own:
                return _choose(own, messages, position), position
            steps += 1
            if steps == MAX_STEPS:
                break
        return None

    def take(self, key: bytes, client_session: bytes) -> Chain | None:
        """Return the chain of a link that no call has continued, which is continued then."""
        for link in self._links.get(key, ()):
            if not link.is_continued and link.chain.client_session == client_session:
                link.is_continued = True
                return link.chain
        return None

    def add(self, key: bytes, link: Link, now: float) -> None:
        """Add a link of a chain, which is active now."""
        links, chain = self._links.setdefault(key, []), link.chain
        links.append(link)
        chain.keys.append(key)
        self._size += 1
        if len(links) > MAX_EQUAL:
            self._remove(key, links[0])
        if len(chain.keys) > MAX_CHAIN_LINKS:
            self._remove_oldest(chain)
        self.touch(chain, now)

    def touch(self, chain: Chain, now: float) -> None:
        """Note a call of a chain."""
        chain.active = now
        self._chains[chain.id] = chain
        self._chains.move_to_end(chain.id)

    def is_live(self, chain: Chain) -> bool:
        """Return whether a chain has not ended."""
        return chain.id in self._chains

    def forget(self, now: float) -> None:
        """Forget the chains that are idle for too long, and those beyond the limits."""
        while self._chains:
            oldest = next(iter(self._chains.values()))
            full = len(self._chains) > MAX_CHAINS or self._size > MAX_LINKS
            if not full and oldest.active + self._idle >= now:
                break
            del self._chains[oldest.id]
            while oldest.keys:
                self._remove_oldest(oldest)

    def _remove_oldest(self, chain: Chain) -> None:
        key = chain.keys[0]
        link = next((each for each in self._links.get(key, ()) if each.chain is chain), None)
        if link is None:
            chain.keys.popleft()
        else:
            self._remove(key, link)

    def _remove(self, key: bytes, link: Link) -> None:
        links = self._links[key]
        links.remove(link)
        if not links:
            del self._links[key]
        link.chain.keys.remove(key)
        self._size -= 1


def link_key(owner: bytes, opening: bytes, answer: bytes) -> bytes:
    """Return the key of a link."""
    return digest(owner, opening, answer)


def _choose(links: Sequence[Link], messages: Sequence[Message], position: int) -> Link:
    """Return the link that fits best; of equal ones the oldest that is not continued."""
    if len(links) == 1:
        return links[0]
    calls, sizes = ids_of_calls(messages[position]), profile(messages[:position])
    ranked = [
        (
            each.calls == calls,
            each.profile == sizes,
            each.position == position,
            not each.is_continued,
        )
        for each in links
    ]
    best = max(ranked)
    fitting = [link for link, rank in zip(links, ranked, strict=True) if rank == best]
    return fitting[0] if best[-1] else fitting[-1]  # else a fork: the latest
