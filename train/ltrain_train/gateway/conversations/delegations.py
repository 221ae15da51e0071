"""Sub-agents: a chain that begins while another chain waits for a tool call that runs an agent.

1. Its first message has the text that an agent's tool call passes on, which may have its result
   already: some agents run beside their caller, or
2. it names the same session, and is another kind of agent with tools, or
3. it is another kind of agent that was never seen alone, and only one call of an agent waits.

The tool call's span has an id before it is written, so that the calls of the sub-agent are inside.
"""

import re
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ltrain_train.gateway.conversations.chains import Chain, ChainIndex
from ltrain_train.gateway.conversations.message_digests import (
    Message,
    call_arguments,
    call_name,
    digest,
    tool_calls,
)

T = TypeVar("T")

AGENT_TOOLS = re.compile(
    r"^(?:.*[._-])?(?:agent|task|delegate|sub_?agent|delegate_(?:task|work|to_\w+)|new_task"
    r"|(?:run|spawn|call|launch|start|invoke|use)_?(?:sub_?)?agents?)$",
    re.IGNORECASE,
)
"""Names of tools that run an agent."""
KINDS = ("subagent_type", "subagent_name", "subagent", "agent_type", "agent_name", "agent", "mode")
"""Arguments that name the kind of agent."""
SUBAGENT = "subagent"
"""The name of a sub-agent whose kind is not named."""
NAME = re.compile(r"[A-Za-z][\w.:-]{0,63}")
RESERVED = re.compile(r"main|utility(-\d+)?")
MIN_TASK = 12
"""Characters of the shortest text that identifies a task."""
TASK_HEAD = 160
"""Characters of a task that are compared."""
MAX_TASKS = 8
"""Texts of one call's arguments that are compared."""
MAX_CALLS = 32
"""Waiting calls of one answer that are remembered."""
MAX_WAITING = 1024
"""Chains of one owner that wait."""
MAX_OWNERS = 4096
"""Owners with such chains; an attempt that has ended leaves the calls that it never answered."""
LAUNCH_S = 60.0
"""Seconds after the result of a call within which its agent begins."""
MAX_LAUNCHED = 64
"""Calls of one owner whose agents have not begun at their results."""


@dataclass(slots=True, eq=False)
class WaitingCall:
    """A tool call whose result no request has carried yet."""

    span: int
    """The id that its span will have."""
    position: int
    """The index of its answer among the messages of the next request."""
    runs_agent: bool
    agent: str
    """The name of the agent that it runs."""
    tasks: tuple[str, ...] = ()
    """The beginnings of the texts among its arguments; they are never stored."""
    is_taken: bool = False
    """Whether a chain works for it."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A tool call with a result, whose agent has not begun."""

    chain: Chain
    call: WaitingCall
    until: float
    """When it is forgotten, on the monotonic clock."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The first request of a chain."""

    owner: bytes
    family: bytes
    client_session: bytes
    has_tools: bool
    is_new_family: bool
    text: str
    """The text of its first messages."""


class Delegations:
    """The chains that wait for their tool calls."""

    def __init__(self, index: ChainIndex) -> None:
        self._index = index
        self._waiting: OrderedDict[bytes, OrderedDict[str, tuple[Chain, list[WaitingCall]]]]
        self._waiting = OrderedDict()
        self._launched: OrderedDict[bytes, deque[Launch]] = OrderedDict()

    def wait(self, chain: Chain, calls: list[WaitingCall]) -> None:
        """Note that a chain waits for calls."""
        if not calls:
            return
        chains = _entry(self._waiting, chain.owner, OrderedDict())
        _, before = chains.get(chain.id, (chain, []))
        chains[chain.id] = (chain, [*before, *calls][-2 * MAX_CALLS :])
        chains.move_to_end(chain.id)
        if len(chains) > MAX_WAITING:
            chains.popitem(last=False)

    def end_wait(self, chain: Chain, answer: int) -> None:
        """Note that a request continues a chain from the answer with an index.

        The calls of later answers wait still: a request that is sent again continues an earlier
        one.
        """
        chains = self._waiting.get(chain.owner, OrderedDict())
        _, calls = chains.pop(chain.id, (chain, []))
        if later := [call for call in calls if call.position > answer]:
            chains[chain.id] = (chain, later)
        if not chains:
            self._waiting.pop(chain.owner, None)
        self._launch(chain, [call for call in calls if call.position <= answer])

    def is_empty(self, owner: bytes) -> bool:
        """Return whether no call of an owner waits for an agent."""
        return owner not in self._waiting and owner not in self._launched

    def find(self, opening: Opening) -> tuple[Chain, WaitingCall] | None:
        """Return the chain and the call for which a new chain works."""
        waiting = list(self._live(opening.owner))
        begun = [*waiting, *self._launches(opening.owner)]
        found = next((pair for pair in begun if _has_task(pair[1], opening.text)), None)
        if found is None and opening.has_tools:
            others = [pair for pair in waiting if pair[0].family != opening.family]
            found = _only(others, opening)
        if found is not None:
            found[1].is_taken = True
        return found

    def _launch(self, chain: Chain, calls: list[WaitingCall]) -> None:
        """Note that calls of agents have results."""
        until = time.monotonic() + LAUNCH_S
        new = [Launch(chain, call, until) for call in calls if call.tasks and not call.is_taken]
        if new:
            _entry(self._launched, chain.owner, deque(maxlen=MAX_LAUNCHED)).extend(new)

    def _launches(self, owner: bytes) -> Iterator[tuple[Chain, WaitingCall]]:
        """Yield the calls with results whose agents may begin, the latest first."""
        launched, now = self._launched.get(owner, deque()), time.monotonic()
        while launched and launched[0].until < now:
            launched.popleft()
        if not launched:
            self._launched.pop(owner, None)
        for each in reversed(launched):
            if not each.call.is_taken and self._index.is_live(each.chain):
                yield each.chain, each.call

    def _live(self, owner: bytes) -> Iterator[tuple[Chain, WaitingCall]]:
        """Yield the calls that wait, the latest first, those that no chain works for first."""
        chains = self._waiting.get(owner, OrderedDict())
        for id in [id for id, (chain, _) in chains.items() if not self._index.is_live(chain)]:
            del chains[id]
        pairs = [(chain, call) for chain, calls in reversed(chains.values()) for call in calls]
        yield from sorted(pairs, key=lambda pair: pair[1].is_taken)


def _entry(owners: OrderedDict[bytes, T], owner: bytes, default: T) -> T:
    """Return the entry of an owner, and remove that of the owner which was used least recently."""
    entry = owners.setdefault(owner, default)
    owners.move_to_end(owner)
    if len(owners) > MAX_OWNERS:
        owners.popitem(last=False)
    return entry


def waiting_calls(
    chain: Chain, history: bytes, answer: Message, position: int
) -> list[WaitingCall]:
    """Return the calls of an answer.

    Args:
        history: the digest of the answer.
        position: its index among the messages of the next request.
    """
    return [
        _waiting_call(tool_span_id(chain, history, call), position, call)
        for call in tool_calls(answer)[:MAX_CALLS]
        if chain.client_session or AGENT_TOOLS.match(call_name(call))
    ]


def _waiting_call(span: int, position: int, call: Mapping[str, Any]) -> WaitingCall:
    if not AGENT_TOOLS.match(call_name(call)):
        return WaitingCall(span, position, False, SUBAGENT)
    arguments = call_arguments(call)
    return WaitingCall(span, position, True, _agent_name(arguments), tuple(_tasks(arguments)))


def tool_span_id(chain: Chain, answer: bytes, call: Mapping[str, Any]) -> int:
    """Return the id of a tool call's span, which is known when the call is requested."""
    id = str(call.get("id") or "").encode(errors="surrogatepass")
    parts = (chain.conversation.trace.to_bytes(16, "big"), chain.id.encode(), answer, id)
    return int.from_bytes(digest(*parts)[:8], "big") or 1


def _only(
    pairs: list[tuple[Chain, WaitingCall]], opening: Opening
) -> tuple[Chain, WaitingCall] | None:
    """Return the call of the same session, or the only call of an agent."""
    if opening.client_session:
        own = [pair for pair in pairs if pair[0].client_session == opening.client_session]
        return min(own, key=lambda pair: not pair[1].runs_agent, default=None)
    agents = [pair for pair in pairs if pair[1].runs_agent]
    return agents[0] if len(agents) == 1 and opening.is_new_family else None


def _has_task(call: WaitingCall, text: str) -> bool:
    return call.runs_agent and any(task in text for task in call.tasks)


def _agent_name(arguments: Any) -> str:
    named = [arguments.get(name) for name in KINDS] if isinstance(arguments, dict) else []
    names = (one for one in named if isinstance(one, str) and NAME.fullmatch(one))
    name = next(names, SUBAGENT)
    return SUBAGENT if RESERVED.fullmatch(name) else name


def _tasks(arguments: Any) -> Iterator[str]:
    """Yield the beginnings of the long texts of a call's arguments, the longest first."""
    if not isinstance(arguments, dict):
        return
    texts = [one.strip() for one in arguments.values() if isinstance(one, str)]
    for text in sorted(texts, key=len, reverse=True)[:MAX_TASKS]:
        if len(text) >= MIN_TASK:
            yield text[:TASK_HEAD]
