"""The reward of a rollout: whether the query's rows are the gold query's."""

from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

from database import Database, Rows

_DATABASE = Database()


def score(task: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, float]:
    """Give `reward`, 1.0 for the gold query's rows in any order, and `executed`, which only tells.

    A policy that executes more and answers less shows as the two drifting apart.
    """
    executed = bool(result["executed"])
    right = executed and _multiset(result["rows"]) == _multiset(_gold_rows(task["gold"]))
    return {"reward": float(right), "executed": float(executed)}


@cache
def _gold_rows(sql: str) -> Rows:
    return _DATABASE.rows(sql)


def _multiset(rows: Rows) -> Counter[str]:
    return Counter(map(repr, rows))
