"""Suggestions while somebody types a name or an id: runs, tasks, policies, datasets, rollouts."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ltrain_collector.errors import QueryFailed
from ltrain_collector.store import Store
from ltrain_transforms.datasets import list_manifests
from ltrain_transforms.policy_file import list_versions
from ltrain_transforms.reports import Kind, policy_names

MOST = 4
"""Suggestions of a kind."""
ID_BEGINS = 3
"""Characters from which on ids of rollouts and traces are searched."""
MAX_TEXT = 200
"""Characters of a text that are searched."""
RUNS_AND_TASKS = f"""
SELECT * FROM (
    SELECT DISTINCT 'run' AS kind, toString(RunId) AS text, '' AS run FROM otel.spans
    WHERE RunId != '' AND positionCaseInsensitiveUTF8(RunId, {{text:String}}) > 0 LIMIT {MOST}
)
UNION ALL
SELECT * FROM (
    SELECT DISTINCT 'task', toString(TaskId), toString(RunId) FROM otel.spans
    WHERE TaskId != '' AND RunId != '' AND positionCaseInsensitiveUTF8(TaskId, {{text:String}}) > 0
    LIMIT {MOST}
)
"""
IDS = f"""
SELECT * FROM (
    SELECT DISTINCT 'rollout' AS kind, toString(RolloutId) AS text, '' AS run FROM otel.spans
    WHERE startsWith(RolloutId, {{text:String}}) LIMIT {MOST}
)
UNION ALL
SELECT * FROM (
    SELECT DISTINCT 'trace', toString(TraceId), '' FROM otel.spans
    WHERE startsWith(TraceId, {{text:String}}) LIMIT {MOST}
)
"""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A thing that a text may mean."""

    kind: str
    """A `Kind`, or `task`."""
    text: str
    """Its name or id."""
    run: str = ""
    """The run of a task."""


def suggestions(store: Store | None, home: Path, text: str) -> list[Suggestion]:
    """Return what a text may mean: names that contain it, and ids that begin with it.

    Args:
        store: None: only the home is searched.
    """
    text = text[:MAX_TEXT]
    if not text:
        return []
    found = list(_stored(store, text)) if store is not None else []
    order = ("run", "task", "policy", "dataset", "rollout", "trace")
    return sorted([*found, *_in_home(home, text)], key=lambda one: order.index(one.kind))


def _stored(store: Store, text: str) -> Iterator[Suggestion]:
    queries = (RUNS_AND_TASKS, IDS) if len(text) >= ID_BEGINS else (RUNS_AND_TASKS,)
    for sql in queries:
        try:
            rows = store.query(sql, {"text": text})
        except QueryFailed:  # a store without spans
            return
        yield from (Suggestion(*row) for row in rows.iter_rows())


def _in_home(home: Path, text: str) -> Iterator[Suggestion]:
    name, _, number = text.casefold().partition("@")
    policies = [each for each in policy_names(home) if name in each.casefold()]
    for policy in policies[:MOST]:
        yield Suggestion(Kind.POLICY, policy)
        versions = list_versions(home / "policies" / policy) if number else ()
        near = [each for each in reversed(versions) if str(each).startswith(number)]
        yield from (Suggestion(Kind.POLICY, f"{policy}@{each}") for each in near[:MOST])
    ids = [str(manifest["id"]) for _, manifest in list_manifests(home)]
    near_ids = [each for each in ids if each.startswith(text.casefold())]
    yield from (Suggestion(Kind.DATASET, each) for each in near_ids[:MOST])
