"""The reward of a rollout: whether the query's rows are the gold query's."""

from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

from database import Database, Rows

_DATABASE = Database()


def score(task: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, float]:
    """Return `reward`, 1.0 if the rows are those of the gold query in any order, and `executed`.

    `executed` is only for diagnosis: it shows a policy that executes more and answers less.
    """
    executed = bool(result["executed"])
    correct = executed and _multiset(result["rows"]) == _multiset(_gold_rows(task["gold"]))
    return {"reward": float(correct), "executed": float(executed)}


@cache
def _gold_rows(sql: str) -> Rows:
    return _DATABASE.rows(sql)


def _multiset(rows: Rows) -> Counter[str]:
    return Counter(map(repr, rows))
