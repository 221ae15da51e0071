"""Conversations from a gateway alone: which calls are joined, and the CPU time of a call.

200 conversations of five simulated clients are interleaved at random, without trace, session or
id. Three clients have sub-agents; many conversations begin with the same task, and short answers
repeat. Clients drop thinking, write arguments anew, move cache markers, edit questions and repeat
requests. Then a conversation grows to 100 turns and 100,000 tokens, and the work of its last calls
is measured, with and without the span of a tool. The requests pass the gateway's APIs.
"""

import random
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import orjson
from opentelemetry.sdk.trace import TracerProvider

from ltrain_train.gateway import (
    APIS,
    ClientCall,
    Conversations,
    RequestLimits,
    open_conversations,
)

CONVERSATIONS, TURNS, KEYS = 200, 8, 4
EDITED, REPEATED, FAILED = 0.04, 0.03, 0.02
"""Shares of the calls that edit the last question, that are sent twice, and that fail at first."""
EQUAL = 0.3
"""The share of answers that are one of a few texts."""
LONG_TURNS, LAST, TOKENS, TOKEN_BYTES = 100, 20, 100_000, 4
MIN_RIGHT, MAX_MS = 0.99, 0.1
TASKS = (
    "Fix the failing test.",
    "Add a flag --verbose.",
    "Explain the module.",
    "Rename the class.",
)
WORDS = ("ok", "done", "next step", "I will look at the file", "the test passes now", "done.")

Message = dict[str, Any]
Parse = Callable[[list[Message], "Client"], ClientCall]
apis = {api.path: api for api in APIS}
limits = RequestLimits()


@dataclass(frozen=True)
class Client:
    """A program that calls the gateway."""

    name: str
    path: str
    agent_tool: str | None
    """The tool that runs a sub-agent."""
    counts_ids: bool = False
    """Whether the ids of tool calls are counters, which repeat."""
    uses_tools: bool = True

    def call(self, messages: list[Message], tools: tuple[str, ...]) -> ClientCall:
        """Return the call as the gateway parses it."""
        body = _BODIES[self.path](messages, tools)
        return apis[self.path].parse(orjson.dumps({"model": "m", **body}), limits)


CLIENTS = (
    Client("claude-cli/2.1", "/v1/messages", "Task"),
    Client("opencode/1.0", "/v1/chat/completions", "task"),
    Client("qwen-code/0.9", "/v1/chat/completions", "agent", counts_ids=True),
    Client("codex_cli_rs/0.50", "/v1/responses", None),
    Client("mini-swe-agent/2.0", "/v1/chat/completions", None, uses_tools=False),
)


@dataclass
class Agent:
    """An agent of a conversation, with the history that it repeats."""

    client: Client
    conversation: int
    key: str
    random: random.Random
    system: str
    history: list[Message]
    turns: int
    tools: tuple[str, ...]
    child: "Agent | None" = None
    pending: list[Message] = field(default_factory=list)
    """The answer with tool calls that wait for the child."""

    def answer(self, number: int) -> Message:
        """Return a random answer."""
        text = self.random.choice(WORDS)
        if self.random.random() > EQUAL:
            text += f" {self.random.randrange(1000)}"
        message: Message = {"role": "assistant", "content": text, "reasoning": "let me think"}
        if not self.tools or self.random.random() < 0.2:
            return message
        delegates = self.client.agent_tool in self.tools and self.random.random() < 0.25
        name = self.client.agent_tool if delegates else "bash"
        place = self.random.randrange(10_000)
        task = f"Search the code for case {place}: {self.random.choice(WORDS)}. Report it."
        arguments = {"prompt": task} if delegates else {"command": "ls", "timeout": 5}
        id = "call_0" if self.client.counts_ids else f"c{self.random.getrandbits(64):x}"
        function = {"name": name, "arguments": orjson.dumps(arguments).decode()}
        call = {"id": id, "type": "function", "function": function}
        return {**message, "tool_calls": [call]}


@dataclass
class Stream:
    """The calls of all conversations, and the trace that each gets."""

    conversations: Conversations
    random: random.Random
    traces: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    keys: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    parents: Counter[str] = field(default_factory=Counter)

    def send(self, agent: Agent, *, fails: bool = False) -> Message:
        """Send the history of an agent, and return the answer."""
        headers = {"user-agent": agent.client.name, "authorization": f"Bearer {agent.key}"}
        messages = [{"role": "system", "content": agent.system}, *agent.history]
        call = agent.client.call(messages, agent.tools)
        placement = self.conversations.place(call, headers, agent.key)
        with placement.starting():
            trace = self.conversations.ids.generate_trace_id()
        self.traces[agent.conversation].append(trace)
        self.keys[trace].add(agent.key)
        answer = agent.answer(len(agent.history))
        if not fails:
            placement.answer([answer])
        placement.leave()
        return answer

    def step(self, agent: Agent) -> bool:
        """Let an agent make its next call; return whether the conversation goes on."""
        if agent.child is not None:
            if self.step(agent.child):
                return True
            agent.child = None
            agent.history += agent.pending
        if self.random.random() < FAILED:
            self.send(agent, fails=True)
        answer = self.send(agent)
        if len(agent.history) > 1 and self.random.random() < REPEATED:
            self.send(agent)
        agent.turns -= 1
        kept = {name: value for name, value in answer.items() if name != "reasoning"}
        self._go_on(agent, kept)
        if agent.turns > 0 and self.random.random() < EDITED:
            self._edit(agent)
        return agent.turns > 0

    def _go_on(self, agent: Agent, answer: Message) -> None:
        """Add an answer and what follows it to the history."""
        calls = answer.get("tool_calls")
        if not calls:
            text = f"{self.random.choice(WORDS)}?"
            agent.history += [answer, {"role": "user", "content": text}]
            return
        function = calls[0]["function"]
        arguments = orjson.loads(function["arguments"])
        function["arguments"] = str(orjson.dumps(arguments, option=orjson.OPT_INDENT_2), "utf-8")
        result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "a.py b.py"}
        if function["name"] == agent.client.agent_tool and agent.turns > 1:
            agent.child = _child(agent, arguments["prompt"])
            agent.history, agent.pending = [*agent.history, answer], [result]
        else:
            agent.history += [answer, result]

    def _edit(self, agent: Agent) -> None:
        """Ask the last question in another way, if there is one."""
        if agent.child is None and agent.history[-1]["role"] == "user" and len(agent.history) > 2:
            agent.history[-1] = {"role": "user", "content": f"rather {agent.turns}"}


def _child(agent: Agent, task: str) -> Agent:
    tools = ("bash",) if agent.client.uses_tools else ()
    history = [{"role": "user", "content": f"<context>x</context>\n{task}"}]
    system = f"You are a search agent of {agent.client.name}."
    place = agent.client, agent.conversation, agent.key, agent.random
    return Agent(*place, system, history, agent.random.randint(1, 3), tools)


def begin(number: int, seed: random.Random) -> Agent:
    """Return the agent of a conversation."""
    client = CLIENTS[number % len(CLIENTS)]
    tools = ("bash", "read", *([client.agent_tool] if client.agent_tool else []))
    history = [{"role": "user", "content": seed.choice(TASKS)}]
    system = f"You are the agent of {client.name}. Today is 2026-11-{1 + number % 28:02}."
    key = f"key-{seed.randrange(KEYS)}"
    turns = seed.randint(2, 2 * TURNS)
    return Agent(client, number, key, seed, system, history, turns, tools * client.uses_tools)


def run_stream(conversations: Conversations, seed: int) -> Stream:
    """Send the calls of all conversations, interleaved at random."""
    chosen = random.Random(seed)
    stream = Stream(conversations, chosen)
    open_agents = [begin(number, chosen) for number in range(CONVERSATIONS)]
    while open_agents:
        agent = chosen.choice(open_agents)
        if not stream.step(agent):
            open_agents.remove(agent)
    return stream


def share_right(stream: Stream) -> float:
    """Return the share of calls whose trace is that of their conversation, and only of it."""
    owner: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for conversation, traces in stream.traces.items():
        for trace in traces:
            owner[trace][conversation] += 1
    right = total = 0
    for conversation, traces in stream.traces.items():
        (trace, count), *_ = Counter(traces).most_common(1)
        total += len(traces)
        right += count if owner[trace].most_common(1)[0][0] == conversation else 0
    return right / total


def long_costs(conversations: Conversations, *, uses_tools: bool) -> Iterator[float]:
    """Yield the CPU milliseconds of the last calls of a conversation that grows."""
    client, text = CLIENTS[1], "x1 y2 z3 " * 1000
    size = TOKENS * TOKEN_BYTES // (2 * LONG_TURNS)
    history: list[Message] = [{"role": "user", "content": "Fix the failing test."}]
    headers = {"user-agent": client.name, "authorization": "Bearer long"}
    for turn in range(LONG_TURNS):
        call = client.call([{"role": "system", "content": "s" * 8000}, *history], ("bash",))
        answer: Message = {"role": "assistant", "content": f"{turn} {text[:size]}"}
        following: Message = {"role": "user", "content": text[:size]}
        if uses_tools:
            arguments = orjson.dumps({"command": f"{turn} {text[:size]}"}).decode()
            function = {"name": "bash", "arguments": arguments}
            requested = {"id": f"c{turn}", "type": "function", "function": function}
            answer = {"role": "assistant", "content": "", "tool_calls": [requested]}
            following |= {"role": "tool", "tool_call_id": f"c{turn}"}
        began = time.thread_time()
        conversations.place(call, headers, f"long {uses_tools}").answer([answer])
        ended = time.thread_time()
        if turn >= LONG_TURNS - LAST:
            yield 1e3 * (ended - began)
        history = [*history, answer, following]


def _functions(tools: tuple[str, ...]) -> list[Message]:
    return [{"type": "function", "function": {"name": name, "parameters": {}}} for name in tools]


def _chat(messages: list[Message], tools: tuple[str, ...]) -> Message:
    return {"messages": messages, **({"tools": _functions(tools)} if tools else {})}


def _messages(messages: list[Message], tools: tuple[str, ...]) -> Message:
    """Return a body of Anthropic's API, with a cache marker on the last block."""
    system, *rest = messages
    sent: list[Message] = [
        {"role": _ROLES[each["role"]], "content": list(_blocks(each))} for each in rest
    ]
    sent[-1]["content"][-1] = {**sent[-1]["content"][-1], "cache_control": {"type": "ephemeral"}}
    named = [{"name": name, "input_schema": {}} for name in tools]
    return {"system": system["content"], "messages": sent, "max_tokens": 99, "tools": named}


_ROLES = {"user": "user", "tool": "user", "assistant": "assistant"}


def _blocks(message: Message) -> Iterator[Message]:
    if message["role"] == "tool":
        content = message["content"]
        yield {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content}
        return
    yield {"type": "text", "text": message["content"]}
    for call in message.get("tool_calls", ()):
        arguments = orjson.loads(call["function"]["arguments"])
        name = call["function"]["name"]
        yield {"type": "tool_use", "id": call["id"], "name": name, "input": arguments}


def _responses(messages: list[Message], tools: tuple[str, ...]) -> Message:
    system, *rest = messages
    named = [{"type": "function", "name": name, "parameters": {}} for name in tools]
    items = [item for each in rest for item in _items(each)]
    return {"instructions": system["content"], "input": items, "tools": named}


def _items(message: Message) -> Iterator[Message]:
    if message["role"] == "tool":
        id, output = message["tool_call_id"], message["content"]
        yield {"type": "function_call_output", "call_id": id, "output": output}
        return
    yield {"role": message["role"], "content": message["content"]}
    for call in message.get("tool_calls", ()):
        yield {"type": "function_call", "call_id": call["id"], **call["function"]}


_BODIES = {"/v1/chat/completions": _chat, "/v1/messages": _messages, "/v1/responses": _responses}


def main() -> None:
    """Print the shares and the costs, and fail beyond the limits."""
    with tempfile.TemporaryDirectory() as folder:
        opened = open_conversations(TracerProvider(), _end, Path(folder))
        assert opened is not None
        conversations = opened.production
        streams = [run_stream(conversations, seed) for seed in range(3)]
        costs = [median(long_costs(conversations, uses_tools=uses)) for uses in (False, True)]
        conversations.close()
    calls = sum(len(traces) for stream in streams for traces in stream.traces.values())
    right = min(map(share_right, streams))
    joined = sum(len(keys) > 1 for stream in streams for keys in stream.keys.values())
    print(f"{calls} calls of {CONVERSATIONS} interleaved conversations, 3 times")
    print(f"in the right conversation: {right:.2%} (at least {MIN_RIGHT:.0%})")
    print(f"traces of several keys: {joined}")
    size = f"{LONG_TURNS} turns and {TOKENS:,} tokens"
    print(f"CPU of a call at {size}: {costs[0]:.3f} ms (at most {MAX_MS} ms)")
    print(f"with the span of a tool: {costs[1]:.3f} ms")
    if right < MIN_RIGHT or joined or costs[0] > MAX_MS:
        raise SystemExit(1)


def _end(end: Callable[[], None]) -> None:
    end()


if __name__ == "__main__":
    main()
