"""The name of the agent that makes a call: `main`, or a utility call of the client.

1. A client may name it in a header of `MARKS`.
2. A request for one token is a probe, and one whose system prompt or message asks for a title, a
   summary, a topic or memories is a utility call, if it has no tools.
3. Else its kind decides: the beginning of its system prompt, and whether it has tools. The first
   kind with tools is `main`, and so are others with mostly the same tools; without tools, the
   first kind is `main`.

Utilities are `utility-1`, `utility-2`, … in the order of their first use by one client of one key.
A kind keeps its name, also when the gateway starts again.
"""

import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ltrain_instrument import attributes
from ltrain_instrument.identity import AGENT_HEADER
from ltrain_train.gateway.conversations.chain_log import NameLine
from ltrain_train.gateway.conversations.message_digests import (
    DATE,
    SYSTEM_ROLES,
    Message,
    digest,
    text_of,
)

MAIN, UTILITY = "main", "utility"
MARKS = (AGENT_HEADER, "x-agent-name", "x-openai-subagent")
"""Headers in which clients name the agent."""
MARK = re.compile(r"[A-Za-z][\w.:-]{0,63}")
HEAD = 240
"""Characters of a system prompt that tell kinds of agents apart."""
TASK_HEAD = 600
"""Characters of a prompt in which a utility's task is searched."""
TASKS = re.compile(
    r"(?i)\btitle generator\b|\b(?:generate|create|write|give|provide|suggest|produce|come up with)"
    r"\b.{0,80}\btitles?\b|\bconversation titles?\b|\bnew (?:conversation )?topic\b|\bisNewTopic\b"
    r"|\bsummar(?:y|i[sz]e|i[sz]ing|i[sz]ation)\b.{0,80}\b(?:conversation|chat|session|history"
    r"|messages|dialog\w*)\b"
    r"|\b(?:extract|recall|select|retrieve|relevant|save|update)\b.{0,80}\bmemor(?:y|ies)\b"
    r"|\bfollow-?up (?:questions|suggestions)\b|\bcommand prefix\b|\bnext speaker\b",
)
"""Tasks of utility calls."""
TASK_WORDS = ("title", "topic", "summar", "memor", "follow", "command prefix", "next speaker")
"""One of them is in each task: without any, the pattern need not be searched, which costs more than
all the rest of a call."""
MAX_KINDS = 64
"""Kinds of one client that have a name of their own; further ones are `utility`."""
MAX_CLIENTS = 1024
MAX_TOOLS = 128
"""Tools of a client's `main` that are remembered."""
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of agent of one client."""

    family: bytes
    tools: frozenset[str]
    is_utility: bool
    """Whether its task is a utility's."""


@dataclass(slots=True)
class ClientAgents:
    """The names of one client's kinds of agents."""

    names: dict[bytes, str] = field(default_factory=dict)
    tools: frozenset[str] | None = None
    """Tools of `main`; None until a kind with tools has the name."""

    def name(self, kind: Kind) -> str:
        """Return the name of a kind, a new one at its first use."""
        if kind.family in self.names:
            return self.names[kind.family]
        name = self._new_name(kind)
        if len(self.names) < MAX_KINDS:
            self.names[kind.family] = name
        if name == MAIN and kind.tools and self.tools is None:
            self.tools = kind.tools
        return name

    def _new_name(self, kind: Kind) -> str:
        if not kind.is_utility and self._is_main(kind):
            return MAIN
        if len(self.names) >= MAX_KINDS:
            return UTILITY
        return f"{UTILITY}-{1 + sum(name.startswith(UTILITY) for name in self.names.values())}"

    def _is_main(self, kind: Kind) -> bool:
        if not kind.tools:
            return MAIN not in self.names.values()
        return self.tools is None or 2 * len(kind.tools & self.tools) >= len(self.tools)


class AgentNames:
    """The names of all clients' kinds of agents."""

    def __init__(self) -> None:
        self._clients: OrderedDict[bytes, ClientAgents] = OrderedDict()

    def client(self, client: bytes) -> ClientAgents:
        """Return the names of a client, by the digest of its key and program."""
        agents = self._clients.setdefault(client, ClientAgents())
        self._clients.move_to_end(client)
        if len(self._clients) > MAX_CLIENTS:
            self._clients.popitem(last=False)
        return agents

    def lines_of(self, client: bytes) -> Iterator[NameLine]:
        """Yield the names of a client as lines of the file."""
        agents = self._clients[client]
        for family, name in list(agents.names.items()):
            tools = sorted(agents.tools or ()) if name == MAIN else []
            yield NameLine(client=client.hex(), family=family.hex(), name=name, tools=tools)

    def lines(self) -> Iterator[NameLine]:
        """Yield the names of all clients."""
        for client in list(self._clients):  # the file is written in another thread
            yield from self.lines_of(client)

    def restore(self, line: NameLine) -> None:
        """Add a name of an earlier process."""
        agents = self.client(bytes.fromhex(line.client))
        if len(agents.names) < MAX_KINDS:
            agents.names[bytes.fromhex(line.family)] = line.name
        if line.tools and agents.tools is None:
            agents.tools = frozenset(line.tools)


def find_kind(body: Mapping[str, Any], messages: Sequence[Message]) -> Kind:
    """Return the kind of a request's agent."""
    tools = tool_names(body)
    system = text_of(messages[0])[:TASK_HEAD] if messages[0]["role"] in SYSTEM_ROLES else ""
    task = _task(body, system, messages) if not tools else b""
    return Kind(_family(system[:HEAD], bool(tools), task), tools, bool(task))


def tool_names(body: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the tools that a request's client runs."""
    functions = (each.get("function") for each in body.get("tools") or () if isinstance(each, dict))
    names = (each.get("name") for each in functions if isinstance(each, dict))
    found = [name for name in names if isinstance(name, str)]
    return frozenset(found[:MAX_TOOLS])


def marked_agent(headers: Mapping[str, str]) -> str:
    """Return the name that a client gives the agent; empty if it gives none."""
    names = (headers.get(name, "").strip() for name in MARKS)
    return next((name for name in names if MARK.fullmatch(name)), "")


def named_agent(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the attribute of a call in a trace whose client names the agent; else none."""
    return {attributes.AGENT_NAME: name} if (name := marked_agent(headers)) else {}


def client_program(headers: Mapping[str, str]) -> bytes:
    """Return the name of the client's program, without its version."""
    return headers.get("user-agent", "").partition("/")[0].strip().lower()[:64].encode()


@lru_cache(maxsize=1024)  # each call of an agent has the same one
def _family(system: str, has_tools: bool, task: bytes) -> bytes:
    head = _NUMBER.sub("0", DATE.sub("", " ".join(system.split())))
    return digest(head.encode(errors="surrogatepass"), b"tools" if has_tools else b"", task)


def _task(body: Mapping[str, Any], system: str, messages: Sequence[Message]) -> bytes:
    """Return the kind of a utility's task; empty if the request has none."""
    if 1 in (body.get("max_tokens"), body.get("max_completion_tokens")):
        return b"probe"
    if _has_task(system):
        return b"system"
    if system or messages[-1]["role"] != "user":
        return b""
    last = text_of(messages[-1])
    return b"message" if _has_task(last[:TASK_HEAD]) or _has_task(last[-TASK_HEAD:]) else b""


def _has_task(text: str) -> bool:
    folded = text.casefold()
    return any(map(folded.__contains__, TASK_WORDS)) and TASKS.search(text) is not None
