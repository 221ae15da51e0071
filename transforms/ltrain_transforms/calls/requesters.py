"""Find the LLM call that requested a tool: by tool-call id, else by name, agent and order.

Where a node of a graph runs a tool without a request of the model, the LLM call before it is the
requester. A tool without a name (a hand-off) takes the only request of that call that no other tool
answered.
"""

import json
from collections import defaultdict, deque
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any

from ltrain_transforms.calls.call import Call
from ltrain_transforms.traces import ToolRequest, parse_json, tool_requests

TOOL_REASONS = ("tool_use", "tool_calls")
"""Finish reasons of an answer with tool requests, by Anthropic and OpenAI."""
RecordedRequest = tuple[Call, ToolRequest]
"""A request, and the LLM call that made it."""


def assign_requesters(calls: Sequence[Call]) -> None:
    """Fill `requested_by` of the tools, and the fields that the request knows better than the tool.

    Args:
        calls: the calls of one execution, by start time.
    """
    by_id: dict[str | None, RecordedRequest] = {}
    claimed = {call.partial.get("tool_call_id") for call in calls if call.kind == "tool"}
    requests = _OpenRequests(claimed)
    llm_calls: list[Call] = []
    by_call_id = {call.call_id: call for call in calls}
    for call in calls:
        if call.kind == "llm":
            llm_calls.append(call)
            answer = call.partial.get("output_messages")
            for request in tool_requests([] if answer is None else answer.messages):
                by_id[request.id] = (call, request)
                requests.add(call, request)
        elif call.kind == "tool":
            ids = _request_ids(call, by_call_id)
            match = next((by_id[one] for one in ids if one in by_id), None)
            match = match or requests.likeliest(call, has_id=bool(ids))
            if match is not None:
                _assign(call, *match)
                requests.answered.add(id(match[1]))
            else:
                call.requested_by = _previous_llm_call(call, llm_calls)
    unanswered = requests.unanswered()
    for call in calls:
        if call.kind == "tool" and "name" not in call.partial:
            own = [entry for entry in unanswered if entry[0].call_id == call.requested_by]
            if len(own) == 1:
                _assign(call, *own[0])


class _OpenRequests:
    """The requests that no tool has answered yet, by name and arguments."""

    def __init__(self, claimed: Collection[str | None]) -> None:
        """Prepare for tools with the ids `claimed`, whose requests are never taken by name."""
        self.answered: set[int] = set()
        """The `id` of each answered request object."""
        self._claimed = claimed
        self._all: list[RecordedRequest] = []
        self._by_name: defaultdict[Hashable, deque[RecordedRequest]] = defaultdict(deque)
        self._by_arguments: defaultdict[Hashable, deque[RecordedRequest]] = defaultdict(deque)

    def add(self, caller: Call, request: ToolRequest) -> None:
        entry = (caller, request)
        self._all.append(entry)
        if not request.id or request.id not in self._claimed:
            name, arguments = request.name or "", request.parsed_arguments
            self._by_name[name].append(entry)
            for form in {comparable(arguments), comparable(_only_value(arguments))}:
                self._by_arguments[name, form].append(entry)

    def likeliest(self, call: Call, *, has_id: bool) -> RecordedRequest | None:
        """Return the likeliest request of the tool's name that no other tool's id claims.

        A tool with an id that no request has, since its framework makes ids of its own, needs equal
        arguments.
        """
        name = call.partial.get("name") or ""
        arguments = comparable(parse_json(call.partial.get("arguments")))
        equal = self._first_open(self._by_arguments.get((name, arguments)))
        return equal or (None if has_id else self._first_open(self._by_name.get(name)))

    def _first_open(self, free: deque[RecordedRequest] | None) -> RecordedRequest | None:
        while free and id(free[0][1]) in self.answered:
            free.popleft()
        return free[0] if free else None

    def unanswered(self) -> list[RecordedRequest]:
        """Return the requests that are left, in order."""
        return [entry for entry in self._all if id(entry[1]) not in self.answered]


def comparable(arguments: Any) -> Hashable:
    """Return arguments in a form that has a hash; empty ones are equal to none."""
    return None if arguments in ("", {}, []) else _hashable(arguments)


def _hashable(value: Any) -> Hashable:
    if isinstance(value, dict):
        return frozenset((name, _hashable(one)) for name, one in value.items())
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    scalar: Hashable = value
    return scalar


def _request_ids(call: Call, by_call_id: dict[str, Call]) -> list[str]:
    """Return the tool's own call id, else the ids in its node's input."""
    own = call.partial.get("tool_call_id")
    if own:
        return [own]
    parent = by_call_id.get(call.parent_id or "")
    requests = parse_json(parent.partial.get("input")) if parent is not None else None
    return [
        str(one["id"])
        for one in (requests if isinstance(requests, list) else [])
        if isinstance(one, dict) and one.get("id") and one.get("name") == call.partial.get("name")
    ]


def _only_value(arguments: Any) -> Any:
    """Return the value of a single argument, which OpenInference writes without its name."""
    single = isinstance(arguments, dict) and len(arguments) == 1
    return next(iter(arguments.values())) if single else arguments


def _assign(call: Call, requester: Call, request: ToolRequest) -> None:
    call.requested_by = requester.call_id
    if _has_agent(requester) and (not _has_agent(call) or _is_guessed(call)):
        call.agent = requester.agent
    if request.id or "tool_call_id" not in call.partial:
        call.partial["tool_call_id"] = request.id or ""
    call.partial.setdefault("name", request.name or "")
    arguments = request.parsed_arguments
    # OpenInference writes a single argument without its name; the request has the name
    if isinstance(arguments, dict) and not isinstance(
        parse_json(call.partial.get("arguments")), dict
    ):
        call.partial["arguments"] = json.dumps(arguments, ensure_ascii=False)


def _has_agent(call: Call) -> bool:
    """Return whether the call's agent is known; else `agent` holds the node."""
    return call.agent is not None and call.agent != call.node


def _is_guessed(call: Call) -> bool:
    """Return whether only the gateway names the call's agent."""
    return call.agent == call.partial.get("guessed_agent") and not call.partial.get("agent")


def _previous_llm_call(call: Call, llm_calls: Iterable[Call]) -> str | None:
    """Return the last LLM call that ended before the tool, of the tool's agent if there is one."""
    ended = [one for one in llm_calls if one.span.end <= call.span.start or _asked(one, call)]
    own = [one for one in ended if one.agent == call.agent]
    last = max(own or ended, key=lambda one: one.span.end, default=None)
    return None if last is None else last.call_id


def _asked(llm_call: Call, tool: Call) -> bool:
    """Return whether the answer ended with tool requests while the tool ran.

    Claude Code starts a tool before the answer that requests it has ended.
    """
    overlaps = llm_call.span.start < tool.span.start < llm_call.span.end <= tool.span.end
    return overlaps and llm_call.partial.get("finish_reason") in TOOL_REASONS
