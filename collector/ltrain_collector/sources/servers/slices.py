"""Pages of servers that list the traces of a time, at most so many: slices of time, new to old."""

from collections.abc import Callable, Iterator
from time import time_ns
from typing import Any

from ltrain_collector.errors import TooMuchAtOnce
from ltrain_collector.sources.servers.page import Page, Window, iso

HOUR, SHORTEST = 3_600_000_000_000, 1_000_000_000
LONGEST = 24 * HOUR
"""Nanoseconds of the first slice, of the shortest one, and of the longest one."""
TRACES = 200
"""Traces that a server is asked for at once."""
DEFAULT = 7 * LONGEST
"""The time before `until` that is read without a `since`."""

List = Callable[[int, int], tuple[list[Any], bool]]
"""Returns the traces of a time, from its start to before its end, in nanoseconds, and whether these
are all."""


def slices(
    window: Window,
    cursor: str,
    read: int,
    traces: List,
    fill: Callable[[Page, Any], None],
) -> Iterator[Page]:
    """Yield a page for each slice with traces; a slice that may have more is halved.

    Args:
        cursor: end and length of the next slice, in nanoseconds; '' at the end of the window.
        fill: adds a trace to a page.
    """
    until = window.until or time_ns()
    begin = until - DEFAULT if window.since is None else window.since
    end, length = map(int, cursor.split()) if cursor else (until, HOUR)
    while end > begin:
        start = max(begin, end - length)
        try:
            found, complete = traces(start, end)
        except TooMuchAtOnce:
            if end - start <= SHORTEST:
                raise
            complete = False
        if not complete and end - start > SHORTEST:
            length = max(SHORTEST, (end - start) // 2)
            continue
        found = found[: window.rest(read)]
        read, end, length = read + len(found), start, min(length * 2, LONGEST)
        done = end <= begin or window.rest(read) == 0
        page = Page("" if done else f"{end} {length}", len(found))
        for trace in found:
            fill(page, trace)
        if not complete:
            fault = f"{len(found)} traces began in one second: the server lists no more of them"
            page.records.append((iso(start) or "", None, fault))
        yield page
        if done:
            return
