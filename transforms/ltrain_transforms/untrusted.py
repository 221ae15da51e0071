"""What a trace says, read so that it can be written again: JSON, Python literals, numbers.

Nobody vouches for an attribute. Whatever these functions return has no half of a surrogate pair, no
integer beyond 64 bits and at most `DEEPEST` levels, so that every table, file and page takes it.
What cannot be read so stays the text that it was, or is null.
"""

import ast
import json
import re
from typing import Any

import orjson

DEEPEST = 100
"""Levels of nesting that are read: two such values, one in the other, stay below the 254 that
orjson writes and the 1,000 calls that Python makes."""

SMALLEST, BEYOND = -(1 << 63), 1 << 63
"""Bounds of a column's integers."""

HALVES = re.compile("[\ud800-\udfff]")


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
    """Read what Python writes beyond the standard: NaN, and halves of a surrogate pair."""
    try:
        value = json.loads(text, parse_int=_bounded)
        written = json.dumps(value, ensure_ascii=False)
        if HALVES.search(written):
            return json.loads(HALVES.sub("\ufffd", written), parse_int=_bounded)
    except (ValueError, RecursionError):
        return text
    return value


def _bounded(digits: str) -> int | float:
    """Return what orjson makes of an integer: beyond 64 bits a float."""
    if len(digits) < 19:
        return int(digits)
    number = float(digits)
    return int(digits) if SMALLEST < number < 2 * BEYOND else number


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
