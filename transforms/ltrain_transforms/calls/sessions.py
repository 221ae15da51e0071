"""The session of each span of a trace that holds several sessions.

A span belongs to the first of these that exists:

1. the session that it or its nearest ancestor names; a stronger name of an outer span wins over a
   weaker one of an inner span: a web server names `session.id`, and the agent inside a thread;
2. the only session among its descendants: the span of an agent may name none, its calls do;
3. the session of its nearest ancestor by the second rule.

A span above several sessions, or beside them, belongs to none. The order of spans changes nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ltrain_collector.promoted_columns import SESSION_NAMES


@dataclass(frozen=True, slots=True)
class NamedSession:
    """A session as a span names it."""

    rank: int
    """The position of the attribute in `SESSION_NAMES`; the smaller is the stronger."""
    id: str

    @classmethod
    def from_attributes(cls, id: str, attributes: Mapping[str, str]) -> "NamedSession":
        """Return the session `id`, with the rank of the strongest attribute that is present."""
        return cls(next((n for n, name in enumerate(SESSION_NAMES) if attributes.get(name)), 0), id)


def sessions_of_spans(
    parents: Mapping[str, str | None], named: Mapping[str, NamedSession]
) -> dict[str, str]:
    """Return the session of each span of one trace that belongs to one, by span id.

    Args:
        parents: the parent of every span of the trace.
        named: what the spans name.
    """
    inherited = _inherited(parents, named)
    below = {span: session.id for span, session in inherited.items()}
    above = _only_sessions_below(parents, below)
    sessions = {span: NamedSession(0, session) for span, session in (below | above).items()}
    return {span: session.id for span, session in _inherited(parents, sessions).items()}


def _inherited(
    parents: Mapping[str, str | None], named: Mapping[str, NamedSession]
) -> dict[str, NamedSession]:
    """Return the session of each span that names one or has an ancestor that does."""
    found: dict[str, NamedSession | None] = {}
    for span in parents:
        path: list[str] = []
        above: str | None = span
        while above is not None and above in parents and above not in found:
            found[above] = None  # a cycle of invalid parents ends here
            path.append(above)
            above = parents[above]
        session = found.get(above) if above is not None else None
        for one in reversed(path):
            own = named.get(one)
            if own is not None and (session is None or own.rank <= session.rank):
                session = own
            found[one] = session
    return {span: session for span, session in found.items() if session is not None}


def _only_sessions_below(
    parents: Mapping[str, str | None], sessions: Mapping[str, str]
) -> dict[str, str]:
    """Return the session of each span without one whose descendants are of one session only."""
    below: defaultdict[str, set[str]] = defaultdict(set)
    for span, session in sessions.items():
        above = parents[span]
        while above is not None and above in parents and _is_new(session, below[above]):
            below[above].add(session)
            above = parents[above]
    return {
        span: next(iter(ids))
        for span, ids in below.items()
        if len(ids) == 1 and span not in sessions
    }


def _is_new(session: str, found: set[str]) -> bool:
    """Return whether a span and those above it may learn of a session below: two are enough."""
    return len(found) < 2 and session not in found


Row = tuple[str, str, str | None, str | None, Mapping[str, str] | None]
"""Trace, span, parent, the session that the span names, and its attributes."""


def sessions_by_span(rows: Iterable[Row]) -> dict[tuple[str, str], str]:
    """Return the session by trace and span; spans that belong to none are left out."""
    parents: defaultdict[str, dict[str, str | None]] = defaultdict(dict)
    named: defaultdict[str, dict[str, NamedSession]] = defaultdict(dict)
    for trace, span, parent, session, attributes in rows:
        parents[trace][span] = parent
        if session:
            named[trace][span] = NamedSession.from_attributes(session, attributes or {})
    return {
        (trace, span): session
        for trace in parents
        for span, session in sessions_of_spans(parents[trace], named[trace]).items()
    }
