"""The reward of a rollout: whether the answer is the result, a number or an option's letter."""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

TOLERANCE = Fraction(1, 100)
"""Largest difference of two equal numbers: absolute, and relative where the result is below 1."""
NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)(e[-+]?\d{1,3})?", re.IGNORECASE)
RATIO = re.compile(r"([-+]?\d+)\s*/\s*(\d+)")
OPTION = re.compile(r"\(?([A-E])\)?(?![A-Za-z])")


def score(task: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, float]:
    """Return `reward`, 1.0 if the answer is the task's result, and `calculated`.

    `calculated` is only for diagnosis: whether the agent called the calculator without a failure.
    """
    calculated = bool(result["expressions"]) and not result["failed"]
    correct = is_equal(result["answer"], task["result"])
    return {"reward": float(correct), "calculated": float(calculated)}


def is_equal(answer: str | None, result: str) -> bool:
    """Return whether an answer is a result: by its letter if the result is an option A to E."""
    if answer is None:
        return False
    option = OPTION.fullmatch(result.strip())
    if option:
        found = OPTION.match(answer.strip())
        return found is not None and found[1] == option[1]
    expected, number = _number(result), _number(answer)
    if expected is None or number is None:
        return answer.strip().lower() == result.strip().lower()
    return abs(number - expected) <= TOLERANCE * min(Fraction(1), abs(expected))


def _number(text: str) -> Fraction | None:
    """Return the number of a text: decimal, with thousands separators or a unit, or a ratio."""
    plain = text.strip().replace(",", "").removeprefix("$").strip()
    ratio = RATIO.fullmatch(plain)
    if ratio:
        return Fraction(int(ratio[1]), int(ratio[2])) if int(ratio[2]) else None
    found = NUMBER.match(plain)
    return Fraction(found[0]) if found else None
