"""The spans that ran when a log record was written that names none.

Of the spans of a process that ran then, the innermost ones count: a span is left out if it encloses
another that ran. A record with a trace is compared with the spans of its trace. A record without
one is compared with all spans of its resource in the store: a server's process has many requests at
a time, and a build reads only some of them.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ltrain_collector.store import Store
from ltrain_transforms.source.call_keys import PROCESS_SQL

RESOURCE = (
    *("service.namespace", "service.name", "service.instance.id"),
    *("host.id", "host.name", "container.id", "process.pid"),
)
"""Attributes that identify a resource. Forked workers may share an instance's id."""
RESOURCE_SQL = (
    "toJSONString([" + ", ".join(f"ResourceAttributes['{name}']" for name in RESOURCE) + "])"
)
"""SQL expression: the whole identity of a resource."""

Place = tuple[str, str]
"""A trace, an execution or nothing, and a process or a resource: a record is compared with the
spans of one place."""
Key = tuple[str, str]
"""Trace and span."""
Moment = tuple[Place, int]
"""A place, and a time in nanoseconds since the epoch."""


class RunningSpan(NamedTuple):
    """The interval of a span of an agent, and its parent."""

    place: Place
    trace_id: str
    span_id: str
    parent_id: str | None
    start: int
    end: int

    @property
    def key(self) -> Key:
        return self.trace_id, self.span_id


def innermost(
    spans: Iterable[RunningSpan], moments: Iterable[Moment], parents: Mapping[Key, Key]
) -> dict[Moment, list[Key]]:
    """Return the innermost spans of each place that ran at each moment.

    Args:
        parents: of spans that need not have run: one that has ended lies between two that run.
    """
    of_place: defaultdict[Place, list[RunningSpan]] = defaultdict(list)
    for span in spans:
        of_place[span.place].append(span)
    times: defaultdict[Place, set[int]] = defaultdict(set)
    for place, time in moments:
        times[place].add(time)
    return {
        (place, time): running
        for place, own in times.items()
        for time, running in _sweep(of_place[place], own, parents)
    }


def _sweep(
    spans: Sequence[RunningSpan], times: Iterable[int], parents: Mapping[Key, Key]
) -> Iterator[tuple[int, list[Key]]]:
    """Yield each time with the innermost spans that ran then."""
    above = {**parents, **{span.key: (span.trace_id, span.parent_id or "") for span in spans}}
    waiting = sorted(spans, key=lambda span: span.start, reverse=True)
    running: list[RunningSpan] = []
    for time in sorted(times):
        while waiting and waiting[-1].start <= time:
            running.append(waiting.pop())
        running = [span for span in running if span.end >= time]
        enclosing: set[Key] = set()
        for span in running:
            outer = above[span.key]
            while outer in above and outer not in enclosing:
                enclosing.add(outer)
                outer = above[outer]
        yield time, sorted({span.key for span in running} - enclosing)


_OF_RESOURCES = f"""
SELECT spans.TraceId, spans.SpanId, spans.ParentSpanId, spans.resource, spans.start, spans.end
FROM (
    SELECT TraceId, SpanId, ParentSpanId, {RESOURCE_SQL} AS resource,
        toUnixTimestamp64Nano(Timestamp) AS start, start + toInt64(Duration) AS end
    FROM otel.spans
    WHERE {PROCESS_SQL} IN {{processes:Array(String)}} AND NOT startsWith(ScopeName, 'ltrain.')
        AND Timestamp <= fromUnixTimestamp64Nano({{last:Int64}}) AND end >= {{first:Int64}}
) AS spans
ASOF JOIN (
    SELECT moment.1 AS resource, moment.2 AS time FROM (
        SELECT arrayJoin(arrayZip({{resources:Array(String)}}, {{times:Array(Int64)}})) AS moment
    )
) AS moments ON spans.resource = moments.resource AND spans.start <= moments.time
WHERE moments.time <= spans.end
"""
"""The spans of resources that ran at one of their times at least."""


def spans_of_resources(
    store: Store, processes: Sequence[str], moments: Sequence[Moment]
) -> Iterator[RunningSpan]:
    """Yield the spans of the whole store that ran at one of the moments of their resource."""
    times = [time for _, time in moments]
    params: dict[str, object] = {
        "processes": list(processes),
        "resources": [resource for (_, resource), _ in moments],
        "times": times,
        "first": min(times),
        "last": max(times),
    }
    for trace, span, parent, resource, *interval in store.query(_OF_RESOURCES, params).iter_rows():
        yield RunningSpan(("", resource), trace, span, parent, *interval)
