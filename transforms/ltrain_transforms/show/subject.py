"""What an id stands for: a dataset, a policy, a run or a rollout, looked for in this order.

`kind:` before it, as in `run:sql`, looks for that kind only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any

from ltrain_collector.store import Store
from ltrain_transforms.dataset import Dataset
from ltrain_transforms.errors import NothingToShow
from ltrain_transforms.manifest import MANIFEST
from ltrain_transforms.show import policy
from ltrain_transforms.show.dataset import of_home
from ltrain_transforms.show.report import named
from ltrain_transforms.show.rollout import candidates

MOST = 5
"""Names that are told where several would fit."""


class Kind(StrEnum):
    DATASET = "dataset"
    """A folder that `ltrain build` made, or the id of one in LTRAIN_HOME/datasets."""
    POLICY = "policy"
    """`NAME` or `NAME@VERSION`, in LTRAIN_HOME/policies."""
    RUN = "run"
    """By its name, in the store."""
    ROLLOUT = "rollout"
    """By the beginning of its id, in the store."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An id as it was typed."""

    text: str
    kinds: tuple[Kind, ...]

    @classmethod
    def read(cls, text: str) -> "Asked":
        kind, colon, rest = text.partition(":")
        if colon and kind in set(Kind):
            return cls(rest, (Kind(kind),))
        return cls(text, tuple(Kind))


def dataset(asked: Asked, home: Path) -> Dataset | None:
    """Find a dataset by its folder or its id."""
    if Kind.DATASET not in asked.kinds or not asked.text:
        return None
    try:
        if (Path(asked.text) / MANIFEST).exists():
            return Dataset.open(Path(asked.text))
    except OSError:  # longer than a file's name can be
        return None
    return next((Dataset.open(path) for path, one in of_home(home) if one == asked.text), None)


def policy_version(asked: Asked, home: Path) -> tuple[str, int | None] | None:
    """Find a policy, and the version that is named."""
    spelled = policy.SPELLING.fullmatch(asked.text)
    if Kind.POLICY not in asked.kinds or spelled is None:
        return None
    name, number = spelled["name"], spelled["version"]
    if name not in policy.names(home):
        return None
    return name, None if number is None else int(number)


def is_run(asked: Asked, store: Store) -> bool:
    """Say whether the store has spans of such a run."""
    if Kind.RUN not in asked.kinds or not asked.text:
        return False
    sql = "SELECT 1 AS one FROM otel.spans WHERE RunId = {run:String} LIMIT 1"
    return store.query(sql, {"run": asked.text}).height > 0


def rollout(asked: Asked, store: Store, trust: Sequence[str]) -> dict[str, Any] | None:
    """Find a rollout by the beginning of its id; `trust` is the recipe's `source.trust`.

    Raises:
        NothingToShow: when it is the beginning of several.
    """
    if Kind.ROLLOUT not in asked.kinds:
        return None
    found = candidates(store, asked.text, trust)
    if len(found) < 2:
        return found[0] if found else None
    few = ", ".join(row["rollout"] for row in found[:MOST]) + (", …" if found[MOST:] else "")
    count = f"{len(found)}{' or more' if len(found) == 50 else ''}"
    raise NothingToShow(
        f"'{asked.text}' begins the ids of {count} rollouts: {few}. Give more of it."
    )


def nothing(asked: Asked, home: Path, store: Store | None) -> NothingToShow:
    """Say what was looked for where, and what is near."""
    known = {
        Kind.DATASET: [str(path) for path, _ in of_home(home)],
        Kind.POLICY: policy.names(home),
        Kind.RUN: _runs(store) if store is not None else [],
    }
    where = store.name if store is not None else "no store"
    looked = {
        Kind.DATASET: f"a dataset (the folder {asked.text or '.'}, or by id in {home}/datasets)",
        Kind.POLICY: f"a policy in {home}/policies (there: {_few(known[Kind.POLICY])})",
        Kind.RUN: f"a run in {where} (there: {_few(known[Kind.RUN])})",
        Kind.ROLLOUT: f"a rollout whose id begins so in {where}",
    }
    near = [
        f"{kind} '{name}'"
        for kind, names in known.items()
        if kind in asked.kinds
        for name in get_close_matches(asked.text, names, n=1)
    ]
    meant = f" Did you mean the {' or the '.join(near)}?" if near else ""
    tried = "; ".join(looked[kind] for kind in asked.kinds)
    return NothingToShow(
        f"Nothing is called '{asked.text}'. Looked for {tried}.{meant} "
        '`ltrain sql "SELECT rollout, task, outcome FROM otel.rollouts"` lists rollouts.'
    )


def _few(names: list[str]) -> str:
    return named([*names[:MOST], "…"] if names[MOST:] else names)


def _runs(store: Store) -> list[str]:
    sql = "SELECT DISTINCT toString(RunId) AS run FROM otel.spans WHERE RunId != '' ORDER BY run"
    return [str(name) for name in store.query(sql)["run"]]
