"""The reward of an order: the share of its fields that are right."""

from collections.abc import Iterator, Mapping
from typing import Any


def score(task: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, float]:
    """Return `reward`, and for diagnosis `exact`: 1 if all fields are right."""
    found, expected = dict(fields(result)), dict(fields(task["order"]))
    right = sum(found.get(name) == value for name, value in expected.items())
    return {"reward": right / len(expected), "exact": float(right == len(expected))}


def fields(order: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and value of each field; text in lower case."""
    for name, value in order.items():
        if isinstance(value, Mapping):
            yield from fields(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value.strip().lower() if isinstance(value, str) else value
