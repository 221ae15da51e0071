"""Parse untrusted text of traces: JSON, Python literals, numbers.

Anyone may write any attribute. The values that these functions return can be written to every
table, file and page: they hold no half of a surrogate pair, no number that is not finite, no
integer beyond 64 bits (the largest is 2^64 - 1) and at most `MAX_DEPTH` levels. Text that cannot be
parsed so is returned unchanged, or as None.
"""

import ast
import json
import re
from math import isfinite
from typing import Any

import orjson
import polars as pl

MAX_DEPTH = 100
"""Levels of nesting that are parsed. Two such values, one inside the other, stay below the 254
levels that orjson writes and the 1,000 nested calls that Python allows."""

MIN_INTEGER, INTEGER_LIMIT = -(1 << 63), 1 << 63
"""Bounds of an integer column; the upper one is excluded."""

SURROGATES = re.compile("[\ud800-\udfff]")

FAILURES = (Exception, pl.exceptions.PanicException)
"""The exceptions that reading a trace may raise: a panic of Polars is a `BaseException`."""

MAX_ERROR_CHARS = 200
"""Characters of an error message in a drop: the message may repeat content of the span."""


def parse_json(text: Any) -> Any:
    """Return the value of JSON; return text that is not JSON, or nested too deep, unchanged."""
    if not isinstance(text, str) or not text:
        return text
    try:
        value = orjson.loads(text)
    except ValueError:
        value = _parse_leniently(text)
    nested = isinstance(value, dict | list)
    if nested and text.count("[") + text.count("{") > MAX_DEPTH and _is_deep(value):
        return text
    return value


def parse_count(text: str | None) -> int | None:
    """Return a count that fits a 64-bit column; None where `text` is not such a count."""
    if text is None:
        return None
    if len(text) < 19 and text.isascii() and text.isdigit():
        return int(text)
    try:
        number = int(float(text))
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number < INTEGER_LIMIT else None


def parse_index(text: str) -> int | None:
    """Return a list index; None where `text` is not a plausible index."""
    return int(text) if len(text) < 10 and text.isascii() and text.isdigit() else None


def parse_literal(text: str) -> str | None:
    """Return the value of a Python string literal; None where `text` is none."""
    try:
        value = ast.literal_eval(text)
    # bad escapes and NUL; CPython's parser raises the other two on literals made to break it
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    return SURROGATES.sub("\ufffd", value) if isinstance(value, str) else None


def _parse_leniently(text: str) -> Any:
    """Return the value of JSON that orjson refuses: NaN, 1e999, halves of a surrogate pair."""
    try:
        value = _load(text)
        written = json.dumps(value, ensure_ascii=False)
        if SURROGATES.search(written):
            return _load(SURROGATES.sub("\ufffd", written))
    except (ValueError, RecursionError):
        return text
    return value


def _load(text: str) -> Any:
    return json.loads(text, parse_int=_integer, parse_float=_finite, parse_constant=str)


def _integer(digits: str) -> int | float | str:
    """Return an integer as orjson does: beyond 64 bits as a float."""
    number = int(digits) if len(digits) <= 20 else None
    return (
        number
        if number is not None and MIN_INTEGER <= number < 2 * INTEGER_LIMIT
        else _finite(digits)
    )


def _finite(digits: str) -> float | str:
    """Return a float; a number that is too large for one stays text."""
    number = float(digits)
    return number if isfinite(number) else digits


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def error_text(error: Exception) -> str:
    """Return type and message of an error, cut to `MAX_ERROR_CHARS`."""
    text = SURROGATES.sub("\ufffd", f"{type(error).__name__}: {error}")
    return text if len(text) <= MAX_ERROR_CHARS else text[:MAX_ERROR_CHARS] + "…"
