"""Shortens the values of a span to a total size that receivers accept.

The longest values are cut: text at a character, JSON at the texts inside it, so that it stays JSON.
Token ids and log-probabilities are never cut: if they do not fit they are removed, and their counts
stay.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

from ltrain_instrument.privacy.values import dump_json, encoded_size, parse_json

Field = TypeVar("Field", bound=Hashable)

MIN_INNER_TEXT_BYTES = 256
"""Minimum bytes to which texts inside a value are cut; below it the value is cut as one text."""


def fit_values(
    values: Mapping[Field, Any], tokens: frozenset[Field], limit: int
) -> dict[Field, Any]:
    """Return replacements for values that exceed `limit` bytes together; None removes a value."""
    sizes = {field: encoded_size(value) for field, value in values.items()}
    if sum(sizes.values()) <= limit:
        return {}
    available = limit - sum(sizes[field] for field in tokens)
    removed: dict[Field, Any] = {}
    if available < limit // 4:
        removed, available = dict.fromkeys(tokens), limit
    texts = {field: field_size for field, field_size in sizes.items() if field not in tokens}
    length = _common_length(sorted(texts.values()), available)
    too_long = (field for field, field_size in texts.items() if field_size > length)
    return removed | {field: shorten(values[field], length) for field in too_long}


def _common_length(sizes: Sequence[int], available: int) -> int:
    """Return the length in bytes to which the longest values must be cut so that all fit."""
    for number, smallest in enumerate(sizes):
        if smallest * (len(sizes) - number) > available:
            return max(0, available) // (len(sizes) - number)
        available -= smallest
    return sizes[-1] if sizes else 0


def shorten(value: Any, limit: int) -> Any:
    """Return the value in at most `limit` bytes; None if it has no texts to cut."""
    if isinstance(value, bytes):
        return value[:limit]
    parsed = parse_json(value) if isinstance(value, str) else value
    longest = limit - limit // 16
    while parsed is not None and longest >= MIN_INNER_TEXT_BYTES:
        shortened = _cut(parsed, longest)
        candidate = dump_json(shortened) if isinstance(value, str) else shortened
        if encoded_size(candidate) <= limit:
            return candidate
        longest //= 2
    return _truncate(value, limit) if isinstance(value, str) else None


def _cut(value: Any, longest: int) -> Any:
    if isinstance(value, str):
        return shorten(value, longest) if encoded_size(value) > longest else value
    if isinstance(value, Mapping):
        return {key: _cut(each, longest) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_cut(each, longest) for each in value]
    return value


def _truncate(text: str, limit: int) -> str:
    return text[:limit].encode(errors="replace")[:limit].decode(errors="ignore")
