"""Which LLM call asked for a tool: by tool-call id, else by name, agent and order.

A node of a graph that runs a tool itself, without a tool call of the model, was asked by the LLM
call before it. A tool that does not say its name (a hand-off) is what is left of that call's
requests, if one is.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from ltrain_transforms.dialects.messages import tool_requests
from ltrain_transforms.merging import Call
from ltrain_transforms.untrusted import parsed


def assign(calls: Sequence[Call]) -> None:
    """Fill `requested_by` of the tools, and what the request says better than the tool's span.

    Args:
        calls: the calls of one execution by start time.
    """
    by_id: dict[str, tuple[Call, dict[str, Any]]] = {}
    open_by_name: dict[str, list[tuple[Call, dict[str, Any]]]] = {}
    before: list[Call] = []
    held = {call.call_id: call for call in calls}
    for call in calls:
        if call.kind == "llm":
            before.append(call)
            answered = call.merged.get("output_messages")
            for request in tool_requests(answered.parsed if answered is not None else None):
                by_id[str(request.get("id"))] = (call, request)
                open_by_name.setdefault(str(request.get("name")), []).append((call, request))
        elif call.kind == "tool":
            ids = _ids(call, held)
            named = open_by_name.get(call.merged.get("name") or "", [])
            found = next((by_id[one] for one in ids if one in by_id), None)
            found = found or (_likeliest(call, named) if named and not ids else None)
            if found is not None:
                _settle(call, *found)
                named[:] = [entry for entry in named if entry[1] is not found[1]]
            else:
                call.requested_by = _before(call, before)
    left = [entry for named in open_by_name.values() for entry in named]
    for call in calls:
        if call.kind == "tool" and "name" not in call.merged:
            own = [entry for entry in left if entry[0].call_id == call.requested_by]
            if len(own) == 1:
                _settle(call, *own[0])


def _ids(call: Call, held: dict[str, Call]) -> list[str]:
    """Give the ids by which the tool may have been asked for: its own, else its node's input."""
    own = call.merged.get("tool_call_id")
    if own:
        return [own]
    parent = held.get(call.parent_id or "")
    asked = parsed(parent.merged.get("input")) if parent is not None else None
    return [
        str(one["id"])
        for one in (asked if isinstance(asked, list) else [])
        if isinstance(one, dict) and one.get("id") and one.get("name") == call.merged.get("name")
    ]


def _likeliest(call: Call, named: list[tuple[Call, dict[str, Any]]]) -> tuple[Call, dict[str, Any]]:
    """Find the request with the tool's arguments, else the first: parallel tools race."""
    given = parsed(call.merged.get("arguments"))
    asked = [(entry, parsed(entry[1].get("arguments"))) for entry in named]
    alike = (entry for entry, wanted in asked if given in (wanted, _only(wanted)))
    return next(alike, named[0])


def _only(arguments: Any) -> Any:
    """Give the value of the only argument; OpenInference shows it bare."""
    single = isinstance(arguments, dict) and len(arguments) == 1
    return next(iter(arguments.values())) if single else arguments


def _settle(call: Call, requester: Call, request: dict[str, Any]) -> None:
    call.requested_by = requester.call_id
    if _placed(requester) and not _placed(call):
        call.agent = requester.agent
    call.merged.setdefault("tool_call_id", str(request.get("id") or ""))
    call.merged.setdefault("name", str(request.get("name") or ""))
    arguments = parsed(request.get("arguments"))
    # a tool with one argument is shown its bare value (OpenInference); the request has its name
    if isinstance(arguments, dict) and not isinstance(parsed(call.merged.get("arguments")), dict):
        call.merged["arguments"] = json.dumps(arguments, ensure_ascii=False)


def _placed(call: Call) -> bool:
    """Say whether it is known whose call it is; else the node stands in for the agent."""
    return call.agent is not None and call.agent != call.node


def _before(call: Call, llm: Iterable[Call]) -> str | None:
    """Find the last LLM call that was over, of the tool's own agent if there is one."""
    over = [one for one in llm if one.outer.end <= call.outer.start]
    own = [one for one in over if one.agent == call.agent]
    last = max(own or over, key=lambda one: one.outer.end, default=None)
    return None if last is None else last.call_id
