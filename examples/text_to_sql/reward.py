"""The reward of a rollout: whether the last query has the rows of the gold query.

The paper rewards the final answer. Here the rows of the query are compared, as in the paper's
released code: a model of 135M parameters seldom gives all values of the rows in words.
"""

from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

from database import QueryFailed, Rows, open_database


def score(task: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, float]:
    """Return `reward`, 1.0 if the last query has the gold rows, `executed` and `answered`.

    The order of rows counts if the gold query has an ORDER BY. `executed` and `answered`, whether
    the final answer contains each gold value, are only for diagnosis.
    """
    gold = _gold_rows(task["database"], task["query"])
    rows = _rows(task["database"], result["sql"])
    ordered = "order by" in task["query"].lower()
    return {
        "reward": float(rows is not None and is_equal(rows, gold, ordered)),
        "executed": float(rows is not None),
        "answered": float(contains(result["answer"] or "", gold)),
    }


def is_equal(rows: Rows, gold: Rows, ordered: bool) -> bool:
    """Return whether the rows are equal: as lists if `ordered`, otherwise as multisets."""
    ours, theirs = ([tuple(row) for row in each] for each in (rows, gold))
    return ours == theirs if ordered else Counter(ours) == Counter(theirs)


def contains(answer: str, gold: Rows) -> bool:
    """Return whether an answer contains each value of the rows; False if there is none."""
    values = [
        f"{value:g}" if isinstance(value, float) else str(value) for row in gold for value in row
    ]
    return bool(values) and all(value.lower() in answer.lower() for value in values)


def _rows(database: str, sql: str) -> Rows | None:
    try:
        return open_database(database).rows(sql)
    except QueryFailed:
        return None


@cache
def _gold_rows(database: str, sql: str) -> Rows:
    return open_database(database).rows(sql)
