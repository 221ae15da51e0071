"""Fits a span's values into what receivers take: the longest are cut, token ids never.

A text is cut at a character, JSON at the texts inside it, so that it stays JSON. Token ids and
log-probabilities that do not fit are left out whole; their counts stay.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

from ltrain_instrument.texts import parsed, size, written

Place = TypeVar("Place", bound=Hashable)

SHORTEST = 256
"""Bytes to which texts inside of a value are cut at the least, before it is cut as a whole."""


def fitted(values: Mapping[Place, Any], tokens: frozenset[Place], limit: int) -> dict[Place, Any]:
    """Give what takes the place of values that are too long together; None: nothing does."""
    sizes = {place: size(value) for place, value in values.items()}
    if sum(sizes.values()) <= limit:
        return {}
    room = limit - sum(sizes[place] for place in tokens)
    gone: dict[Place, Any] = {}
    if room < limit // 4:
        gone, room = dict.fromkeys(tokens), limit
    texts = {place: bytes_ for place, bytes_ in sizes.items() if place not in tokens}
    level = _level(sorted(texts.values()), room)
    long = (place for place, bytes_ in texts.items() if bytes_ > level)
    return gone | {place: shortened(values[place], level) for place in long}


def _level(sizes: Sequence[int], room: int) -> int:
    """Give the length to which the longest must be cut so that all of them fit."""
    for number, smallest in enumerate(sizes):
        if smallest * (len(sizes) - number) > room:
            return max(0, room) // (len(sizes) - number)
        room -= smallest
    return sizes[-1] if sizes else 0


def shortened(value: Any, limit: int) -> Any:
    """Give a value of at most `limit` bytes; None where it has no texts to cut."""
    if isinstance(value, bytes):
        return value[:limit]
    inside = parsed(value) if isinstance(value, str) else value
    longest = limit - limit // 16
    while inside is not None and longest >= SHORTEST:
        kept = _cut(inside, longest)
        fits = written(kept) if isinstance(value, str) else kept
        if size(fits) <= limit:
            return fits
        longest //= 2
    return _beginning(value, limit) if isinstance(value, str) else None


def _cut(value: Any, longest: int) -> Any:
    if isinstance(value, str):
        return shortened(value, longest) if size(value) > longest else value
    if isinstance(value, Mapping):
        return {key: _cut(one, longest) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_cut(one, longest) for one in value]
    return value


def _beginning(text: str, limit: int) -> str:
    return text[:limit].encode(errors="replace")[:limit].decode(errors="ignore")
