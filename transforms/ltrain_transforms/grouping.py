"""Which spans describe one and the same call, within one execution (SEMCONV, three rules).

1. One is an LLM ancestor of the other, with no agent, node or tool between. Tools likewise;
   agents of one name, seen by two instrumentations.
2. They share a response id, overlap in time, and neither contradicts the other's output.
3. One contains the other in time within one process, with equal output (or both failed), and no
   other span of that instrumentation does.

Spans of the gateway with token ids are each a call of their own, whatever spans are around them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ltrain_transforms.captures import output_of
from ltrain_transforms.dialects.partial import Partial
from ltrain_transforms.roles import Role
from ltrain_transforms.spans import Span

SLACK = 2_000_000
"""Nanoseconds by which an inner span may outlast the outer one: LangChain's tracer keeps time in
floats, and ends its span before the SDK's is closed."""

MOST_AT_ONCE = 500
"""LLM spans that run at once beyond which the earliest is held to contain no later one: without a
bound the look costs the square of what an agent writes."""


@dataclass(frozen=True, slots=True)
class Described:
    """A span with what it says of a call."""

    span: Span
    partial: Partial


def group(enclosing: Mapping[str, Span], described: Sequence[Described]) -> list[list[Described]]:
    """Put the spans of each call together, each call's outermost span first.

    Args:
        enclosing: every span of the execution by id.
    """
    joined = _Joined(described)
    _by_ancestry(enclosing, joined)
    llm = [one for one in described if one.partial["kind"] == "llm"]
    _by_response_id(llm, joined)
    _by_containment(llm, joined)
    parts = (part for members in joined.groups() for part in _answered(enclosing, members))
    return [sorted(part, key=outermost) for part in parts]


class _Joined:
    """A union-find over described spans."""

    def __init__(self, described: Sequence[Described]) -> None:
        self.by_id = {one.span.span_id: one for one in described}
        self._parent = {span_id: span_id for span_id in self.by_id}

    def root(self, span_id: str) -> str:
        while self._parent[span_id] != span_id:
            self._parent[span_id] = self._parent[self._parent[span_id]]
            span_id = self._parent[span_id]
        return span_id

    def join(self, one: Described, other: Described) -> None:
        self._parent[self.root(one.span.span_id)] = self.root(other.span.span_id)

    def together(self, one: Described, other: Described) -> bool:
        return self.root(one.span.span_id) == self.root(other.span.span_id)

    def groups(self) -> list[list[Described]]:
        found: defaultdict[str, list[Described]] = defaultdict(list)
        for span_id, one in self.by_id.items():
            found[self.root(span_id)].append(one)
        return list(found.values())


def _answered(enclosing: Mapping[str, Span], members: list[Described]) -> Iterator[list[Described]]:
    """Part what the gateway answered; each answer has the spans that enclose no other.

    Of retries one is answered. A span around several answers, which an agent writes where it likes,
    makes no retries of them; it describes the last.
    """
    answers = [
        one for one in members if one.span.role == Role.GATEWAY and one.partial.get("tokens")
    ]
    answers.sort(key=lambda one: (one.span.start, one.span.span_id))
    if len(answers) > 1:
        above = [{span.span_id for span in ancestors(one.span, enclosing)} for one in answers]
        around = Counter(span_id for ids in above for span_id in ids)
        own = {one.span.span_id for one in answers}
        for answer, ids in zip(answers[:-1], above, strict=False):
            alone = {one for one in ids - own if around[one] == 1} | {answer.span.span_id}
            yield [one for one in members if one.span.span_id in alone]
            members = [one for one in members if one.span.span_id not in alone]
    yield members


def outermost(one: Described) -> tuple[bool, int, int, str]:
    """Sort key: the longest first, the gateway's and captures' own last."""
    span = one.span
    return one.partial.get("measured", False), span.start - span.end, span.start, span.span_id


def _by_ancestry(enclosing: Mapping[str, Span], joined: _Joined) -> None:
    for one in joined.by_id.values():
        if one.partial["kind"] not in ("llm", "tool", "agent"):
            continue
        above = _nearest(one.span, enclosing, joined)
        if above is not None and _same_call(one, above):
            joined.join(one, above)


def _nearest(span: Span, enclosing: Mapping[str, Span], joined: _Joined) -> Described | None:
    """Find the nearest ancestor that describes a call."""
    for ancestor in ancestors(span, enclosing):
        if ancestor.span_id in joined.by_id:
            return joined.by_id[ancestor.span_id]
    return None


def ancestors(span: Span, enclosing: Mapping[str, Span]) -> Iterator[Span]:
    """Go up from `span`, itself excluded; a cycle, which broken ids can make, ends the walk."""
    seen = {span.span_id}
    above = enclosing.get(span.parent_id or "")
    while above is not None and above.span_id not in seen:
        yield above
        seen.add(above.span_id)
        above = enclosing.get(above.parent_id or "")


def _same_call(inner: Described, outer: Described) -> bool:
    one, other = inner.partial, outer.partial
    if one["kind"] != other["kind"]:
        return False
    if one["kind"] == "agent":
        same = one.get("agent") is not None and one.get("agent") == other.get("agent")
        return same and inner.span.scope != outer.span.scope
    return one["kind"] == "llm" or _same_tool(inner, outer)


def _same_tool(inner: Described, outer: Described) -> bool:
    one, other = inner.partial.get("name"), outer.partial.get("name")
    if one is None or other is None or one == other:
        return True
    # frameworks put the server's name before the tool's
    return inner.span.get("mcp.method.name") is not None and other.endswith(one)


def _by_response_id(llm: Sequence[Described], joined: _Joined) -> None:
    seen: defaultdict[str, list[Described]] = defaultdict(list)
    for one in llm:
        answer = one.partial.get("response_id")
        for other in seen[answer] if answer else ():
            overlap = one.span.start <= other.span.end and other.span.start <= one.span.end
            if overlap and _compatible(one.partial, other.partial):
                joined.join(one, other)
        if answer:
            seen[answer].append(one)


def _compatible(one: Partial, other: Partial) -> bool:
    said = output_of(one), output_of(other)
    return None in said or said[0] == said[1]


def _by_containment(llm: Sequence[Described], joined: _Joined) -> None:
    running: list[Described] = []
    for inner in sorted(llm, key=lambda one: (one.span.start, -one.span.end)):
        running = [one for one in running if one.span.end + SLACK >= inner.span.start]
        holders = [one for one in running if _contains(one.span, inner.span)]
        held = Counter(one.span.scope for one in holders)
        for outer in holders:
            alone = held[outer.span.scope] == 1
            if alone and not joined.together(inner, outer) and _equal(inner, outer):
                joined.join(inner, outer)
        running = [*running[1 - MOST_AT_ONCE :], inner]


def _contains(outer: Span, inner: Span) -> bool:
    return (
        outer.start <= inner.start
        and inner.end <= outer.end + SLACK
        and outer.scope != inner.scope
        and outer.process == inner.process
    )


def _equal(inner: Described, outer: Described) -> bool:
    said = output_of(inner.partial), output_of(outer.partial)
    failed = [one.partial.get("status") == "error" for one in (inner, outer)]
    return said[0] == said[1] and (said[0] is not None or all(failed))
