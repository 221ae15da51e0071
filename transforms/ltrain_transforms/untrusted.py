"""What a trace says, read so that it can be written again: JSON, Python literals, numbers.

Nobody vouches for an attribute. Whatever these functions return has no half of a surrogate pair, no
number that is not finite, no integer beyond 64 bits (2^64 - 1 is the largest) and at most `DEEPEST`
levels, so that every table, file and page takes it. What cannot be read so stays the text that it
was, or is null.
"""

import ast
import json
import re
from math import isfinite
from typing import Any

import orjson
import polars as pl

DEEPEST = 100
"""Levels of nesting that are read: two such values, one in the other, stay below the 254 that
orjson writes and the 1,000 calls that Python makes."""

SMALLEST, BEYOND = -(1 << 63), 1 << 63
"""Bounds of a column's integers."""

HALVES = re.compile("[\ud800-\udfff]")

FAILURES = (Exception, pl.exceptions.PanicException)
"""What reading a trace may raise: a panic of Polars is a `BaseException`."""


def parsed(text: Any) -> Any:
    """Return the value of JSON; what is no JSON, or is nested too deep, stays as it is."""
    if not isinstance(text, str) or not text:
        return text
    try:
        value = orjson.loads(text)
    except ValueError:
        value = _leniently(text)
    nested = isinstance(value, dict | list)
    if nested and text.count("[") + text.count("{") > DEEPEST and _is_deep(value):
        return text
    return value


def whole(text: str | None) -> int | None:
    """Return a count that fits a column of 64 bits; null where `text` is none."""
    if text is None:
        return None
    if len(text) < 19 and text.isascii() and text.isdigit():
        return int(text)
    try:
        number = int(float(text))
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number < BEYOND else None


def index(text: str) -> int | None:
    """Return a place in a list; null where `text` is none that a writer of lists gives."""
    return int(text) if len(text) < 10 and text.isascii() and text.isdigit() else None


def literal(text: str) -> str | None:
    """Return the text that a Python literal spells; null where it spells none."""
    try:
        value = ast.literal_eval(text)
    # bad escapes and NUL; and what CPython's parser raises on literals that are made to break it
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    return HALVES.sub("\ufffd", value) if isinstance(value, str) else None


def _leniently(text: str) -> Any:
    """Return the value of JSON that orjson refuses: NaN, 1e999, halves of a surrogate pair."""
    try:
        value = _loaded(text)
        written = json.dumps(value, ensure_ascii=False)
        if HALVES.search(written):
            return _loaded(HALVES.sub("\ufffd", written))
    except (ValueError, RecursionError):
        return text
    return value


def _loaded(text: str) -> Any:
    return json.loads(text, parse_int=_integer, parse_float=_finite, parse_constant=str)


def _integer(digits: str) -> int | float | str:
    """Return what orjson makes of an integer: beyond 64 bits a float."""
    number = int(digits) if len(digits) <= 20 else None
    return number if number is not None and SMALLEST <= number < 2 * BEYOND else _finite(digits)


def _finite(digits: str) -> float | str:
    """Return a number; one that is too large for a float stays text."""
    number = float(digits)
    return number if isfinite(number) else digits


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True
