"""Names and ids that are near to one that names nothing, such as one with a wrong letter."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from ltrain_collector.errors import QueryFailed
from ltrain_collector.store import Store
from ltrain_transforms.reports import Kind, Reference

MAX_NEAR = 3
"""Names of one kind that are offered."""
MAX_TEXT = 200
"""Characters of a name that are compared."""
EDGE = 3
"""Characters at the beginning or the end of an id that a near one has too."""
COLUMNS = {Kind.ROLLOUT: "RolloutId", Kind.TRACE: "TraceId"}
"""The columns of ids in the store that may be near."""
NEAR = """
SELECT DISTINCT substring({column}, 1, 200) AS id FROM otel.spans
WHERE {column} != ''
    AND (startsWith(lower({column}), {{begin:String}}) OR endsWith(lower({column}), {{end:String}}))
ORDER BY editDistance(lower(substring(id, 1, {{length:UInt32}})), {{text:String}}), id LIMIT 20
"""
"""Of an id of which only the beginning was typed, only that is compared."""


def near_references(
    text: str, kinds: Sequence[Kind], names: Mapping[Kind, Sequence[str]], store: Store | None
) -> list[Reference]:
    """Return references to names and ids of these kinds that are near to a text.

    Args:
        names: the names of the kinds that have few.
        store: the store that is searched for ids of rollouts and traces.
    """
    text = text[:MAX_TEXT]
    found = list[Reference]()
    for kind in kinds:
        if kind in COLUMNS:
            candidates = _stored_ids(store, kind, text) if store is not None else []
            near = _closest(text, {name[: len(text)]: name for name in reversed(candidates)})
        else:
            near = _closest(text, {name: name for name in names.get(kind, ())})
        found += [Reference(kind, name) for name in near]
    return found


def describe_near(near: Sequence[Reference]) -> str:
    """Return the question whether one of these is meant; '' if there is none."""
    names = " or the ".join(f"{one.kind} '{one.id}'" for one in near)
    return f" Did you mean the {names}?" if near else ""


def _closest(text: str, candidates: Mapping[str, str]) -> list[str]:
    """Return the candidates whose key is near to a text, in any case of letters."""
    by_key = {key.casefold(): name for key, name in candidates.items()}
    keys = get_close_matches(text.casefold(), list(by_key), n=MAX_NEAR)
    return [by_key[key] for key in keys]


def _stored_ids(store: Store, kind: Kind, text: str) -> list[str]:
    if len(text) < EDGE:
        return []
    text = text.lower()
    values = {"begin": text[:EDGE], "end": text[-EDGE:], "text": text, "length": len(text)}
    try:
        found = store.query(NEAR.format(column=COLUMNS[kind]), values)
    except QueryFailed:  # the reader gets the error about the name, which is the cause
        return []
    return [str(name) for name in found["id"]]
