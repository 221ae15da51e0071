"""Group the spans of one execution that describe the same call. Two spans do, if (SEMCONV):

1. One is an LLM ancestor of the other, without an agent, node or tool between, and response ids,
   outputs or inputs agree, or cannot be compared; tools likewise, by their names, and by their ids
   or else their data; and agents of the same name from two instrumentations. A log record of a tool
   also describes the spans with its call id, or without one with its name and arguments, and so
   does the gateway's span of its result. Or:
2. They share a response id, overlap in time, and do not contradict each other's output. Or:
3. One is a log record without a response id, the other the gateway's, they overlap in time, and
   their token counts are equal (or both failed); of several pairs, in the order of time. Or:
4. One contains the other in time within one process, their outputs are equal and the texts at the
   end of their prompts, too (or both failed), and no other span of the outer one's instrumentation
   contains it.

Two ids of a tool call, or of an agent, are two calls, in any nesting; so are two response ids with
different outputs, but for the gateway's. Each span of the gateway with token ids is a call of its
own, whatever spans enclose it. An LLM span around several calls is none of them (see `containers`).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from ltrain_instrument.attributes import LOG_EVENT
from ltrain_transforms.calls import requesters
from ltrain_transforms.calls.call import (
    SLACK,
    Call,
    ancestors,
    comparable_output,
    have_same_output,
    last_input,
    overlap,
)
from ltrain_transforms.calls.containers import as_containers
from ltrain_transforms.dialects import Partial
from ltrain_transforms.traces import Role, Span, parse_json

AGENT_ID = "gen_ai.agent.id"
MAX_RUNNING = 500
"""Concurrent LLM spans that are compared; earlier ones count as not containing a later one. Without
a bound the cost is the square of the number of spans that an agent writes."""


def group_spans(enclosing: Mapping[str, Span], described: Sequence[Call]) -> list[list[Call]]:
    """Return the spans of each call, the outermost first.

    Args:
        enclosing: every span of the execution, by id.
    """
    described = as_containers(enclosing, described)
    groups = _Groups(described)
    _join_by_ancestry(enclosing, groups)
    llm = [one for one in described if one.partial["kind"] == "llm"]
    _join_by_response_id(llm, groups)
    _join_by_usage(llm, groups)
    _join_by_containment(llm, groups)
    _join_tools([one for one in described if one.partial["kind"] == "tool"], groups)
    parts = (part for members in groups.members() for part in _split_answers(enclosing, members))
    return [sorted(part, key=outermost_first) for part in parts]


class _Groups:
    """A union-find over described spans."""

    def __init__(self, described: Sequence[Call]) -> None:
        self.by_id = {one.span.span_id: one for one in described}
        self._parent = {span_id: span_id for span_id in self.by_id}
        self._tool_call_id = {
            span_id: id
            for span_id, one in self.by_id.items()
            if one.partial["kind"] == "tool" and (id := one.partial.get("tool_call_id"))
        }

    def root(self, span_id: str) -> str:
        while self._parent[span_id] != span_id:
            self._parent[span_id] = self._parent[self._parent[span_id]]
            span_id = self._parent[span_id]
        return span_id

    def join(self, one: Call, other: Call) -> bool:
        """Join the groups of two spans; return False if they have different ids of a tool call."""
        inner, outer = self.root(one.span.span_id), self.root(other.span.span_id)
        ids = {self._tool_call_id[root] for root in (inner, outer) if root in self._tool_call_id}
        if len(ids) > 1:
            return False
        self._parent[inner] = outer
        self._tool_call_id.update(dict.fromkeys([outer], *ids) if ids else {})
        return True

    def together(self, one: Call, other: Call) -> bool:
        return self.root(one.span.span_id) == self.root(other.span.span_id)

    def members(self) -> list[list[Call]]:
        by_root: defaultdict[str, list[Call]] = defaultdict(list)
        for span_id, one in self.by_id.items():
            by_root[self.root(span_id)].append(one)
        return list(by_root.values())


def _split_answers(enclosing: Mapping[str, Span], members: list[Call]) -> Iterator[list[Call]]:
    """Yield one group for each answer of the gateway, with the spans that enclose only that answer.

    Retries of an SDK have one answer. A span that encloses several answers does not make retries
    of them, since an agent may write a span around anything; it describes the last answer.
    """
    answers = [
        one for one in members if one.span.role == Role.GATEWAY and one.partial.get("tokens")
    ]
    answers.sort(key=lambda one: (one.span.start, one.span.span_id))
    if len(answers) > 1:
        enclosing_ids = [
            {span.span_id for span in ancestors(one.span, enclosing)} for one in answers
        ]
        answers_inside = Counter(span_id for ids in enclosing_ids for span_id in ids)
        own = {one.span.span_id for one in answers}
        for answer, ids in zip(answers[:-1], enclosing_ids, strict=False):
            alone = {one for one in ids - own if answers_inside[one] == 1} | {answer.span.span_id}
            yield [one for one in members if one.span.span_id in alone]
            members = [one for one in members if one.span.span_id not in alone]
    yield members


def outermost_first(one: Call) -> tuple[bool, int, int, str]:
    """Sort key: the longest span first; spans of the gateway and of captures last."""
    span, partial = one.span, one.partial
    inner = partial.get("measured", False) or partial.get("untimed", False)
    return inner, span.start - span.end, span.start, span.span_id


def _join_by_ancestry(enclosing: Mapping[str, Span], groups: _Groups) -> None:
    for one in groups.by_id.values():
        if one.partial["kind"] not in ("llm", "tool", "agent"):
            continue
        above = _nearest(one.span, enclosing, groups)
        if above is not None and _same_call(one, above):
            groups.join(one, above)


def _nearest(span: Span, enclosing: Mapping[str, Span], groups: _Groups) -> Call | None:
    """Return the nearest ancestor that describes a call."""
    for ancestor in ancestors(span, enclosing):
        if ancestor.span_id in groups.by_id:
            return groups.by_id[ancestor.span_id]
    return None


def _same_call(inner: Call, outer: Call) -> bool:
    one, other = inner.partial, outer.partial
    if one["kind"] != other["kind"]:
        return False
    if one["kind"] == "agent":
        same = one.get("agent") is not None and one.get("agent") == other.get("agent")
        ids = inner.span.get(AGENT_ID), outer.span.get(AGENT_ID)
        return same and inner.span.scope != outer.span.scope and (None in ids or ids[0] == ids[1])
    if one["kind"] == "tool":
        return is_same_tool(inner, outer)
    of_gateway = Role.GATEWAY in (inner.span.role, outer.span.role)
    return _agree(one, other) and (of_gateway or not _have_other_answers(one, other))


def _agree(one: Partial, other: Partial) -> bool:
    """Return whether response ids, outputs or inputs are equal; or what is known cannot tell.

    Outputs that differ are no evidence by themselves: see `merging.compare_captures`.
    """
    if _have_same_answer(one, other):
        return True  # the inputs, which are longer, need not be parsed
    others = [
        (one.get("response_id"), other.get("response_id")),
        (last_input(one), last_input(other)),
    ]
    known = [left == right for left, right in others if left is not None and right is not None]
    return any(known) or not known


def _have_other_answers(one: Partial, other: Partial) -> bool:
    """Return whether two spans have response ids and outputs, and both differ.

    Between a client and the gateway there may be a proxy, which writes its own ids and may change
    the output.
    """
    ids = one.get("response_id"), other.get("response_id")
    outputs = comparable_output(one), comparable_output(other)
    known = all(ids) and None not in outputs
    return known and ids[0] != ids[1] and not have_same_output(one, other)


def _have_same_answer(one: Partial, other: Partial) -> bool:
    """Return whether the outputs are equal, and not of two requests with response ids of their own.

    A proxy may write its own response id, so equal outputs with different ids can be one call.
    """
    ids = one.get("response_id"), other.get("response_id")
    if not have_same_output(one, other):
        return False
    inputs = (last_input(one), last_input(other)) if all(ids) and ids[0] != ids[1] else (None, None)
    return None in inputs or inputs[0] == inputs[1]


def is_same_tool(inner: Call, outer: Call) -> bool:
    """Return whether the spans name one tool, with equal data if a span has no call id."""
    has_ids = all(one.partial.get("tool_call_id") for one in (inner, outer))
    if not has_ids and _have_other_data(inner, outer):
        return False
    one, other = inner.partial.get("name"), outer.partial.get("name")
    if one is None or other is None or one == other:
        return True
    if LOG_EVENT in inner.span.attributes:  # it may have an alias of the name
        written_in = inner.span.parent_id == outer.span.span_id
        return written_in or (has_ids and _have_equal_arguments(inner, outer))
    # frameworks put the MCP server's name before the tool's
    return inner.span.get("mcp.method.name") is not None and other.endswith(one)


def _have_equal_arguments(one: Call, other: Call) -> bool:
    """Return whether two spans with one call id have arguments, and the same ones."""
    equal = one.partial.get("tool_call_id") == other.partial.get("tool_call_id")
    arguments = _arguments(one.partial)
    return equal and bool(arguments) and arguments == _arguments(other.partial)


def _have_other_data(inner: Call, outer: Call) -> bool:
    """Return whether neither the arguments nor the results of two spans of tools are equal.

    Instrumentations differ in how they write arguments, so of two of them the results tell, too.
    """
    one, other = inner.partial, outer.partial
    if "arguments" not in one or "arguments" not in other or _arguments(one) == _arguments(other):
        return False
    if "output" in one and "output" in other:
        return one["output"] != other["output"]
    return inner.span.scope == outer.span.scope


def _join_by_response_id(llm: Sequence[Call], groups: _Groups) -> None:
    by_response: defaultdict[str, list[Call]] = defaultdict(list)
    for one in llm:
        answer = one.partial.get("response_id")
        for other in by_response[answer] if answer else ():
            if overlap(one.span, other.span) and _compatible(one.partial, other.partial):
                groups.join(one, other)
        if answer:
            by_response[answer].append(one)


def _join_by_usage(llm: Sequence[Call], groups: _Groups) -> None:
    by_usage: defaultdict[Hashable, list[Call]] = defaultdict(list)
    for one in sorted(llm, key=lambda one: (one.span.end, one.span.span_id)):
        if one.span.role == Role.GATEWAY and (usage := _usage(one.partial)) is not None:
            by_usage[usage].append(one)
    for one in sorted(llm, key=lambda one: (one.span.end, one.span.span_id)):
        if LOG_EVENT in one.span.attributes and "response_id" not in one.partial:
            answers = by_usage[_usage(one.partial)]
            same = (n for n, answer in enumerate(answers) if overlap(one.span, answer.span))
            if (first := next(same, None)) is not None:
                groups.join(one, answers.pop(first))


def _join_tools(tools: Sequence[Call], groups: _Groups) -> None:
    """Join the reports of a tool call with the client's own span of it.

    A report is a log record, or the gateway's span of a result: the moment at which the gateway
    learnt of it, however late.
    """
    in_order = sorted(tools, key=lambda one: (one.span.end, one.span.span_id))
    records = [one for one in in_order if LOG_EVENT in one.span.attributes]
    others = [one for one in in_order if LOG_EVENT not in one.span.attributes]
    by_gateway = [one for one in others if one.span.role == Role.GATEWAY]
    own = [one for one in others if one.span.role != Role.GATEWAY]
    results = [one for one in others if one.partial.get("untimed")]
    timed = [one for one in others if not one.partial.get("untimed")]
    _join_each(groups, records, own, _record_keys, _is_record)
    _join_each(groups, records, by_gateway, _record_keys, lambda record, result: True)
    _join_each(groups, results, timed, _tool_keys, _is_result)
    _join_executed([one for one in own if one.partial.get("tool_call_id")], groups)


def _join_executed(tools: Sequence[Call], groups: _Groups) -> None:
    """Join a tool's span with that of the process that executed it in another trace."""
    by_id: defaultdict[str, list[Call]] = defaultdict(list)
    for tool in sorted(tools, key=lambda one: (one.span.start, -one.span.end, one.span.span_id)):
        of_id = by_id[tool.partial["tool_call_id"]]
        for other in of_id[-MAX_RUNNING:]:
            elsewhere = other.span.trace_id != tool.span.trace_id
            if elsewhere and _is_record(tool, other) and not _have_other_data(tool, other):
                groups.join(tool, other)
        of_id.append(tool)


def _join_each(
    groups: _Groups,
    reports: Sequence[Call],
    tools: Sequence[Call],
    keys: Callable[[Call], list[Hashable]],
    fits: Callable[[Call, Call], bool],
) -> None:
    """Join each report with the first tool that has one of its keys and fits; each tool once."""
    by_key: defaultdict[Hashable, list[Call]] = defaultdict(list)
    for tool in tools if reports else ():  # their arguments need not be parsed
        for key in _tool_keys(tool):
            by_key[key].append(tool)
    joined: set[str] = set()
    for report in reports:
        same = (
            tool
            for key in keys(report)
            for tool in by_key[key]
            if tool.span.span_id not in joined and fits(report, tool) and groups.join(report, tool)
        )
        if (first := next(same, None)) is not None:
            joined.add(first.span.span_id)


def _is_record(record: Call, tool: Call) -> bool:
    """Return whether a log record may be that of a tool's span."""
    return overlap(record.span, tool.span) and is_same_tool(record, tool)


def _is_result(result: Call, tool: Call) -> bool:
    """Return whether a result may be that of a tool's span, which began before."""
    return tool.span.start <= result.span.end and is_same_tool(result, tool)


def _record_keys(record: Call) -> list[Hashable]:
    """Return the call id of a log record; of a record without an id its name with its arguments."""
    return _tool_keys(record)[:1]


def _tool_keys(tool: Call) -> list[Hashable]:
    """Return the call id of a tool, if it has one, and its name with its arguments."""
    keys: list[Hashable] = [(tool.partial.get("name"), _arguments(tool.partial))]
    id = tool.partial.get("tool_call_id")
    return [id, *keys] if id else keys


def _arguments(tool: Partial) -> Hashable:
    return requesters.comparable(parse_json(tool.get("arguments")))


def _usage(partial: Partial) -> Hashable | None:
    """Return the token counts of a call, or its failure; None where neither is known."""
    if partial.get("status") == "error":
        return "error"
    counts = partial.get("input_tokens"), partial.get("output_tokens")
    return None if None in counts else counts


def _compatible(one: Partial, other: Partial) -> bool:
    outputs = comparable_output(one), comparable_output(other)
    return None in outputs or have_same_output(one, other)


def _join_by_containment(llm: Sequence[Call], groups: _Groups) -> None:
    running: list[Call] = []
    for inner in sorted(llm, key=lambda one: (one.span.start, -one.span.end)):
        running = [one for one in running if one.span.end + SLACK >= inner.span.start]
        containers = [one for one in running if _contains(one.span, inner.span)]
        of_scope = Counter(one.span.scope for one in containers)
        for outer in containers:
            only = of_scope[outer.span.scope] == 1
            if only and not groups.together(inner, outer) and _equal(inner, outer):
                groups.join(inner, outer)
        running = [*running[1 - MAX_RUNNING :], inner]


def _contains(outer: Span, inner: Span) -> bool:
    return (
        outer.start <= inner.start
        and inner.end <= outer.end + SLACK
        and outer.scope != inner.scope
        and outer.process == inner.process
    )


def _equal(inner: Call, outer: Call) -> bool:
    partials = inner.partial, outer.partial
    failed = all(partial.get("status") == "error" for partial in partials)
    without = failed and not any(map(comparable_output, partials))
    return without or (_have_same_answer(*partials) and not _have_other_request(*partials))


def _have_other_request(one: Partial, other: Partial) -> bool:
    """Return whether two spans have prompts that end with different texts, and no common id.

    Neither encloses the other, so equal answers, such as `no`, are no evidence against it.
    """
    ids = one.get("response_id"), other.get("response_id")
    inputs = last_input(one), last_input(other)
    return not (all(ids) and ids[0] == ids[1]) and None not in inputs and inputs[0] != inputs[1]
