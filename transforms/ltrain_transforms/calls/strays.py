"""Find model calls that another trace of their process describes too: strays, and their hosts.

Two instrumentations may each make a trace of one call: a framework's, and that of the SDK inside
it, or of a proxy. The SDK's span is a stray, and the framework's its host, if they are of one
sender and different instrumentations, not each below an agent of its own trace, and

1. their response ids are equal, they overlap in time and do not contradict each other's output; or
2. they are of one process, the host contains the stray in time, their outputs are equal (or both
   failed), neither response ids nor inputs contradict that, and no call of its own trace encloses
   the stray.

The gateway's span of a call is a stray too where the agent sends it no trace context: its host is
the agent's span with the same response id, whichever process and sender, if they overlap in time
and do not contradict each other's output. Of several such spans in one trace it is the first.

A host has one stray of an instrumentation. Of several concurrent calls that agree so, each takes
one in order of time if their prompts are equal: then it does not matter which. Otherwise they are
ambiguous: a wrong place would show an execution what it never read. The order of the spans changes
nothing.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import polars as pl

from ltrain_transforms.calls.call import (
    SLACK,
    Call,
    comparable_output,
    have_same_output,
    last_input,
    overlap,
)
from ltrain_transforms.dialects import describe
from ltrain_transforms.traces import FAILURES, Role, iter_spans

MAX_RUNNING = 100
"""Concurrent calls of one key among which a call is compared, the latest ones. Without a bound the
cost is the square of the number of calls."""

Key = tuple[str, str]
"""Trace and span."""
Edges = dict[Key, list[Key]]
"""The possible hosts of each stray."""


@dataclass(frozen=True, slots=True)
class Strays:
    """The calls that another trace describes too."""

    hosts: Mapping[Key, Key]
    """The host of each stray, in order of time: a host that is a stray itself comes before."""
    ambiguous: frozenset[Key]
    """Calls that have several possible hosts."""


def find_strays(spans: pl.DataFrame, keys: pl.DataFrame) -> Strays:
    """Return the strays among spans that have unique ids.

    Args:
        keys: `trace_id`, `span_id` and `call_keys` of model calls: only calls that share a key are
            compared.
    """
    buckets, answers = _buckets(spans, keys), _answers(spans, keys)
    concerned = {key for _, members in (*buckets, *answers) for key in members}
    if not concerned:
        return Strays({}, frozenset())
    calls = _Calls(spans, keys, concerned)
    by_id: Edges = defaultdict(list)
    by_answer: Edges = defaultdict(list)
    for _, members in answers:
        for stray, hosts in calls.hosts_of_answers(members):
            by_id[stray] += hosts
    for name, members in buckets:
        edges = by_id if name.startswith("id:") else by_answer
        for stray, host in calls.pairs(members, by_id=edges is by_id):
            # two agents may get one response from a cache
            if not (calls.has_agent(stray) and calls.has_agent(host)):
                edges[stray].append(host)
    for stray in by_answer.keys() - by_id.keys():
        if not calls.is_enclosed(stray):
            by_id[stray] = calls.likeliest(stray, by_answer[stray])
    return calls.matched({stray: hosts for stray, hosts in by_id.items() if hosts})


def _buckets(spans: pl.DataFrame, keys: pl.DataFrame) -> list[tuple[str, list[Key]]]:
    """Return the calls of each key that several traces and instrumentations of a process have."""
    agents = spans.filter(pl.col("role") == Role.AGENT)
    columns = ("trace_id", "span_id", "process", "sender", "scope")
    found = agents.select(columns).join(
        keys.explode("call_keys", empty_as_null=True).drop_nulls("call_keys").unique(),
        ["trace_id", "span_id"],
    )
    within = ("call_keys", "process", "sender")
    by_id = pl.col("call_keys").str.starts_with("id:")
    several = (
        found.with_columns(process=pl.when(~by_id).then("process"))
        .filter(
            pl.col("process").is_not_null() | by_id,
            *(pl.col(name).n_unique().over(within) > 1 for name in ("trace_id", "scope")),
        )
        .sort("call_keys", "process", "sender", "trace_id", "span_id")
    )
    buckets: defaultdict[tuple[str, str | None, str | None], list[Key]] = defaultdict(list)
    for trace, span, process, sender, _, key in several.iter_rows():
        buckets[key, process, sender].append((trace, span))
    return [(name, members) for (name, *_), members in buckets.items()]


def _answers(spans: pl.DataFrame, keys: pl.DataFrame) -> list[tuple[str, list[Key]]]:
    """Return the calls of each response id of the gateway's spans that no agent's span encloses."""
    columns = ("trace_id", "span_id", "role", "enclosed")
    by_agent = spans.filter(pl.col("role") == Role.AGENT)
    parents = by_agent.select("trace_id", parent_id="span_id", enclosed=pl.lit(True)).unique()
    spans = spans.join(parents, ["trace_id", "parent_id"], "left")
    by_id = keys.explode("call_keys", empty_as_null=True).filter(
        pl.col("call_keys").str.starts_with("id:")
    )
    found = spans.select(columns).join(by_id.unique(), ["trace_id", "span_id"])
    by_gateway = pl.col("role") == Role.GATEWAY
    answer, call = by_gateway & pl.col("enclosed").is_null(), pl.col("role") == Role.AGENT
    several = found.filter(
        answer | call, *(one.any().over("call_keys") for one in (answer, call))
    ).sort("call_keys", "trace_id", "span_id")
    buckets: defaultdict[str, list[Key]] = defaultdict(list)
    for trace, span, key in several.select("trace_id", "span_id", "call_keys").iter_rows():
        buckets[key].append((trace, span))
    return list(buckets.items())


class _Calls:
    """The model calls that may be strays or hosts, with what encloses them."""

    def __init__(self, spans: pl.DataFrame, keys: pl.DataFrame, of: set[Key]) -> None:
        self._spans = spans
        traces = pl.Series(sorted({trace for trace, _ in of}), dtype=pl.String).implode()
        concerned = spans.filter(pl.col("trace_id").is_in(traces))
        columns = concerned.select("trace_id", "span_id", "parent_id", "scope")
        self._parents = {(row[0], row[1]): row[2] for row in columns.iter_rows()}
        scopes = {(row[0], row[1]): row[3] for row in columns.iter_rows()}
        self._calls = {
            key: one for key, one in self._describe(of).items() if one.partial["kind"] == "llm"
        }
        self._inside = {
            (above, scopes[call])
            for call in keys.select("trace_id", "span_id").iter_rows()
            if call in scopes
            for above in self._ancestors(call)
        }
        self._enclosing = self._describe({above for key in of for above in self._ancestors(key)})

    def _describe(self, keys: Iterable[Key]) -> dict[Key, Call]:
        wanted = pl.DataFrame(
            sorted(keys), {"trace_id": pl.String, "span_id": pl.String}, orient="row"
        )
        described = {}
        for span in iter_spans(self._spans.join(wanted, ["trace_id", "span_id"], "semi")):
            partial, _ = describe(span)
            if partial is not None:
                described[span.trace_id, span.span_id] = Call(span, partial)
        return described

    def _ancestors(self, key: Key) -> Iterator[Key]:
        visited = {key}
        above = (key[0], self._parents[key] or "")
        while above in self._parents and above not in visited:
            yield above
            visited.add(above)
            above = (key[0], self._parents[above] or "")

    def is_enclosed(self, key: Key) -> bool:
        """Return whether a call of its own trace encloses it."""
        return any(above in self._enclosing for above in self._ancestors(key))

    def has_agent(self, key: Key) -> bool:
        """Return whether an agent of its own trace encloses it."""
        calls = (self._enclosing.get(above) for above in self._ancestors(key))
        return any(one is not None and one.partial["kind"] == "agent" for one in calls)

    def likeliest(self, stray: Key, hosts: Iterable[Key]) -> list[Key]:
        """Return the hosts without a call of the stray's instrumentation in their own trace.

        If the users' messages of some are those of the stray, only these are left.
        """
        one = self._calls[stray]
        possible = [host for host in hosts if (host, one.span.scope) not in self._inside]
        questions = _questions(one)
        equal = [host for host in possible if _questions(self._calls[host]) == questions]
        return equal or possible

    def pairs(self, members: Iterable[Key], *, by_id: bool) -> Iterator[tuple[Key, Key]]:
        """Yield each possible stray with each of its hosts."""
        running: list[Call] = []
        for stray in sorted(
            (self._calls[one] for one in members if one in self._calls), key=_order
        ):
            running = [one for one in running if one.span.end + SLACK >= stray.span.start]
            for host in running:
                if _is_other(stray, host) and _agree(stray, host, by_id=by_id):
                    yield _key(stray), _key(host)
            running = [*running[1 - MAX_RUNNING :], stray]

    def hosts_of_answers(self, members: Iterable[Key]) -> Iterator[tuple[Key, list[Key]]]:
        """Yield each answer of the gateway, and the first span of each trace that describes it."""
        calls = sorted((self._calls[one] for one in members if one in self._calls), key=_order)
        answers = [one for one in calls if one.span.role == Role.GATEWAY]
        others = [one for one in calls if one.span.role != Role.GATEWAY]
        for answer in answers:
            first: dict[str, Key] = {}
            for one in others:
                same = _is_other(answer, one) and overlap(answer.span, one.span)
                if same and _agree(answer, one, by_id=True):
                    first.setdefault(one.span.trace_id, _key(one))
            yield _key(answer), list(first.values())

    def matched(self, edges: Edges) -> Strays:
        """Return one host for each stray; of hosts of several instrumentations, the outermost."""
        by_scopes: defaultdict[tuple[str, str], Edges] = defaultdict(dict)
        for stray, hosts in edges.items():
            for host in dict.fromkeys(hosts):
                scopes = (self._calls[stray].span.scope, self._calls[host].span.scope)
                by_scopes[scopes].setdefault(stray, []).append(host)
        found: defaultdict[Key, list[Key]] = defaultdict(list)
        ambiguous: set[Key] = set()
        for part in by_scopes.values():
            for component in _components(part):
                unclear = self._match(component, found)
                ambiguous.update(unclear)
        outermost = {stray: min(hosts, key=self._time) for stray, hosts in found.items()}
        in_order = {stray: outermost[stray] for stray in sorted(outermost, key=self._time)}
        return Strays(in_order, frozenset(ambiguous - in_order.keys()))

    def _match(self, edges: Edges, found: dict[Key, list[Key]]) -> Iterable[Key]:
        """Add the hosts of strays that compete for them; return those that have no clear one.

        The stray with the fewest possible hosts comes first: it leaves the most to the others.
        """
        left = {stray: set(hosts) for stray, hosts in edges.items()}
        rivals: defaultdict[Key, list[Key]] = defaultdict(list)
        for stray, hosts in left.items():
            for host in hosts:
                rivals[host].append(stray)
        equal = self._are_equal(left) and (len(rivals) == 1 or self._are_equal(rivals))
        queue = [(len(hosts), self._time(stray), stray) for stray, hosts in left.items()]
        heapify(queue)
        ambiguous: set[Key] = set()
        while queue:
            count, _, stray = heappop(queue)
            if stray not in left or count != len(left[stray]):
                continue  # it has a later entry
            if count > 1 and not equal:
                return ambiguous | left.keys()
            if count:
                host = min(left[stray], key=self._time)
                same = [one for one in rivals[host] if one in left and len(left[one]) == 1]
                if equal or len(same) == 1:
                    found[stray].append(host)
                else:
                    ambiguous.update(same)
                    for one in same:
                        left.pop(one)
            left.pop(stray, None)
            for one in rivals[host] if count else ():
                if one in left and host in left[one]:
                    left[one].remove(host)
                    heappush(queue, (len(left[one]), self._time(one), one))
        return ambiguous

    def _are_equal(self, keys: Iterable[Key]) -> bool:
        """Return whether these calls have the same prompt."""
        texts = {_prompt(self._calls[key]) for key in keys}
        return len(texts) == 1 and None not in texts

    def _time(self, key: Key) -> tuple[int, int, str, str]:
        return _order(self._calls[key])


def _key(one: Call) -> Key:
    return one.span.trace_id, one.span.span_id


def _order(one: Call) -> tuple[int, int, str, str]:
    """Sort key: by start; of two that start together, the enclosing one first."""
    return one.span.start, -one.span.end, one.span.trace_id, one.span.span_id


def _prompt(one: Call) -> str | None:
    try:
        prompt = one.partial.get("input_messages")
        return None if prompt is None else prompt.text
    except FAILURES:  # as in `_agree`
        return None


def _questions(one: Call) -> list[str]:
    """Return the texts of the users' messages, which instrumentations record alike."""
    prompt = one.partial.get("input_messages")
    return [message.text for message in prompt.messages if message.role == "user"] if prompt else []


def _is_other(stray: Call, host: Call) -> bool:
    return stray.span.trace_id != host.span.trace_id and stray.span.scope != host.span.scope


def _agree(stray: Call, host: Call, *, by_id: bool) -> bool:
    try:
        outputs = [comparable_output(one.partial) for one in (stray, host)]
        same = have_same_output(stray.partial, host.partial)
        if by_id:
            return None in outputs or same
        if stray.span.end > host.span.end + SLACK:
            return False
        failed = [one.partial.get("status") == "error" for one in (stray, host)]
        return (same or (not any(outputs) and all(failed))) and not any(
            None not in known and known[0] != known[1]
            for known in (
                [one.partial.get("response_id") for one in (stray, host)],
                [last_input(one.partial) for one in (stray, host)],
            )
        )
    except FAILURES:  # messages are parsed when they are compared; `calls` reports their faults
        return False


def _components(edges: Edges) -> Iterator[Edges]:
    """Yield the strays that compete for hosts, directly or by others."""
    parent: dict[Key, Key] = {}

    def root(key: Key) -> Key:
        while (above := parent.setdefault(key, key)) != key:
            parent[key] = parent[above]
            key = above
        return key

    # a stray of one component may be a host of another: hosts are of another instrumentation
    for stray, hosts in edges.items():
        for host in hosts:
            parent[root(host)] = root(stray)
    components: defaultdict[Key, Edges] = defaultdict(dict)
    for stray, hosts in edges.items():
        components[root(stray)][stray] = hosts
    yield from components.values()


def nearest_roots(parents: Mapping[str, str | None], roots: Collection[str]) -> dict[str, str]:
    """Return, for spans of one trace, the nearest of `roots` that is above or the span itself."""
    found: dict[str, str | None] = {}
    for span in parents:
        path: list[str] = []
        above: str | None = span
        while above is not None and above in parents and above not in found:
            found[above] = above if above in roots else None  # a cycle of invalid parents ends here
            path.append(above)
            if above in roots:
                break
            above = parents[above]
        nearest = found.get(above) if above is not None else None
        found.update(dict.fromkeys(path, nearest))
    return {span: root for span, root in found.items() if root is not None}
