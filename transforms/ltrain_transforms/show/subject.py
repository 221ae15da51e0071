"""Find what an id names: a dataset, policy, run, rollout, trace, session or span, in this order.

A prefix `kind:`, as in `run:sql`, searches that kind only.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ltrain_collector.store import Store
from ltrain_transforms.datasets import MANIFEST, Dataset, list_datasets
from ltrain_transforms.errors import NothingToShow
from ltrain_transforms.reports import IDENTIFIER, Identifier, Kind, join_names, policy_names
from ltrain_transforms.show.near_names import describe_near, near_references
from ltrain_transforms.show.rollout import RolloutPlace, candidates
from ltrain_transforms.show.traffic import TrafficKind, traffic_ids

MAX_CANDIDATES = 50
"""Number of ids with the same beginning that are counted."""

MAX_NAMES = 5
"""Number of names that an error lists."""


def find_dataset(name: Identifier, home: Path, folders: bool = True) -> Dataset | None:
    """Find a dataset by its id or, with `folders`, by its folder."""
    if Kind.DATASET not in name.kinds or not name.text:
        return None
    try:
        if folders and (Path(name.text) / MANIFEST).exists():
            return Dataset.open(Path(name.text))
    except OSError:  # longer than a file name can be
        return None
    paths = (path for path, dataset_id in list_datasets(home) if dataset_id == name.text)
    return next(map(Dataset.open, paths), None)


def find_policy_version(name: Identifier, home: Path) -> tuple[str, int | None] | None:
    """Find a policy; return its name, and the number of the version if the id has one."""
    match = IDENTIFIER.fullmatch(name.text)
    if Kind.POLICY not in name.kinds or match is None:
        return None
    policy_name, number = match["name"], match["version"]
    if policy_name not in policy_names(home):
        return None
    return policy_name, None if number is None else int(number)


def is_run(name: Identifier, store: Store) -> bool:
    """Return whether the store has spans of a run of that name."""
    if Kind.RUN not in name.kinds or not name.text:
        return False
    sql = "SELECT 1 AS one FROM otel.spans WHERE RunId = {run:String} LIMIT 1"
    return store.query(sql, {"run": name.text}).height > 0


def find_rollout(name: Identifier, store: Store, trust: Sequence[str]) -> RolloutPlace | None:
    """Find a rollout by the beginning of its id.

    Args:
        trust: the recipe's `source.trust`.
    """
    if Kind.ROLLOUT not in name.kinds:
        return None
    rows = candidates(store, name.text, trust)
    if len(rows) < 2:
        return rows[0] if rows else None
    raise _ambiguous(name, Kind.ROLLOUT, [row.rollout for row in rows])


def find_traffic(name: Identifier, store: Store) -> tuple[TrafficKind, str] | None:
    """Find a trace or a session by its id or the beginning of it; a whole id comes first."""
    kinds: tuple[TrafficKind, ...] = ("trace", "session")
    found = {
        kind: traffic_ids(store, kind, name.text, MAX_CANDIDATES)
        for kind in kinds
        if Kind(kind) in name.kinds and name.text
    }
    whole = next((kind for kind, ids in found.items() if ids == [name.text]), None)
    if whole is not None:
        return whole, name.text
    several = {kind: ids for kind, ids in found.items() if ids}
    if len(several) > 1:
        raise _of_two_kinds(name, several)
    for kind, ids in several.items():
        if len(ids) > 1:
            raise _ambiguous(name, Kind(kind), ids)
        return kind, ids[0]
    return None


def find_span(name: Identifier, store: Store) -> tuple[str, str] | None:
    """Find a span by its id; return its rollout, '' if it is of none, and its trace."""
    if Kind.SPAN not in name.kinds or not name.text:
        return None
    sql = (
        "SELECT RolloutId AS rollout, TraceId AS trace FROM otel.spans "
        "WHERE SpanId = {span:String} ORDER BY rollout DESC, trace LIMIT 1"
    )
    return next(iter(store.query(sql, {"span": name.text}).rows()), None)


def _of_two_kinds(name: Identifier, several: Mapping[TrafficKind, list[str]]) -> NothingToShow:
    examples = " and ".join(f"of the {kind} {ids[0]}" for kind, ids in several.items())
    return NothingToShow(
        f"'{name.text}' is the beginning {examples}. Type more characters of the id, or write "
        f"trace:{name.text} or session:{name.text}."
    )


def _ambiguous(name: Identifier, kind: Kind, ids: list[str]) -> NothingToShow:
    count = f"{len(ids)}{' or more' if len(ids) == MAX_CANDIDATES else ''}"
    return NothingToShow(
        f"'{name.text}' is the beginning of {count} {kind} ids: {_first_names(ids)}. Type more "
        "characters of the id."
    )


def not_found(name: Identifier, home: Path, store: Store | None) -> NothingToShow:
    """Return the error with the places that were searched, and the nearest names."""
    known = {
        Kind.DATASET: [dataset_id for _, dataset_id in list_datasets(home)],
        Kind.POLICY: policy_names(home),
        Kind.RUN: _runs(store) if store is not None else [],
    }
    where = store.name if store is not None else "no store"
    places = {
        Kind.DATASET: f"a dataset (the folder {name.text or '.'}, or by id in {home}/datasets)",
        Kind.POLICY: f"a policy in {home}/policies (there: {_first_names(known[Kind.POLICY])})",
        Kind.RUN: f"a run in {where} (there: {_first_names(known[Kind.RUN])})",
        Kind.ROLLOUT: f"a rollout whose id begins so in {where}",
        Kind.TRACE: f"a trace whose id begins so in {where}",
        Kind.SESSION: f"a session whose id begins so in {where}",
        Kind.SPAN: f"a span of that id in {where}",
    }
    near = near_references(name.text, name.kinds, known, store)
    searched = "; ".join(places[kind] for kind in name.kinds)
    return NothingToShow(
        f"Nothing is called '{name.text}'. Searched for {searched}.{describe_near(near)} "
        "`ltrain traces` lists what is stored.",
        near,
    )


def _first_names(names: list[str]) -> str:
    return join_names([*names[:MAX_NAMES], "…"] if names[MAX_NAMES:] else names)


def _runs(store: Store) -> list[str]:
    sql = "SELECT DISTINCT toString(RunId) AS run FROM otel.spans WHERE RunId != '' ORDER BY run"
    return [str(name) for name in store.query(sql)["run"]]
