"""Token ids and log-probabilities out of the texts that writers put them into, a column at once.

Ids are JSON without spaces, log-probabilities base64 of little-endian float32 (SEMCONV); of several
choices a list of either. Plain lists of numbers are read too. What is anything else gives null.
"""

from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import orjson
import polars as pl
import pyarrow as pa

MAX_DIGITS = 8
"""Longest id that is read eight digits at a time; no vocabulary needs more."""
CHUNK = 64
"""Texts that are read at once: more of them no longer fit into a core's cache."""
COMMA, ZERO, NINE = ord(","), ord("0"), ord("9")

Texts = Sequence[str | None]
Array = np.ndarray[Any, Any]


def id_lists(texts: Texts) -> pl.Series:
    """Decode `[1,2,3]`, one list of ids a text, to `List(UInt32)`."""
    lengths: list[int | None] = [None] * len(texts)
    there = [index for index, text in enumerate(texts) if text]
    values = [np.empty(0, np.uint32)]
    for start in range(0, len(there), CHUNK):
        some = there[start : start + CHUNK]
        read, counts = _ids([texts[index] or "" for index in some])
        values.append(read)
        for index, count in zip(some, counts, strict=True):
            lengths[index] = count
    return to_lists(pl.Series(np.concatenate(values)), lengths)


def id_choices(texts: Texts) -> pl.Series:
    """Decode `[4,5]` or `[[4],[5,6]]`, the ids of each choice, to `List(List(UInt32))`."""
    if any(text is not None and text.startswith("[[") for text in texts):
        return _slowly(texts, _choices, pl.UInt32())
    return one_choice(id_lists(texts))


def logprob_choices(texts: Texts) -> pl.Series:
    """Decode base64, a list of it, or a list of numbers, to `List(List(Float32))`."""
    if any(text is not None and text.startswith("[") for text in texts):
        return _slowly(texts, _weights, pl.Float32())
    raw = [_decoded(text) for text in texts]
    values = np.frombuffer(b"".join(one for one in raw if one), "<f4").astype(np.float32)
    return one_choice(
        to_lists(pl.Series(values), [None if one is None else len(one) // 4 for one in raw])
    )


def to_lists(values: pl.Series, lengths: Sequence[int | None]) -> pl.Series:
    """Cut `values` into lists of these lengths, null where the length is."""
    ends = np.cumsum([0, *(length or 0 for length in lengths)], dtype=np.int64)
    return _nested(values, ends, np.array([length is not None for length in lengths], np.bool_))


def one_choice(inner: pl.Series) -> pl.Series:
    """Wrap each list into a list of its own."""
    return _nested(inner, np.arange(len(inner) + 1), inner.is_not_null().to_numpy())


def _nested(values: pl.Series, ends: Array, there: Array) -> pl.Series:
    # from buffers: `pa.array` of a sequence imports pandas wherever that is installed
    flat = values.to_arrow()
    buffers = [np.packbits(there, bitorder="little"), ends]
    made = pa.Array.from_buffers(
        pa.large_list(flat.type), len(there), list(map(pa.py_buffer, buffers)), children=[flat]
    )
    return pl.Series(pl.from_arrow(made))


def _ids(texts: Sequence[str]) -> tuple[Array, list[int | None]]:
    """Give all ids of some texts, and how many are whose; None of a text that is no list of ids."""
    plain = all(text[0] == "[" and text[-1] == "]" for text in texts)
    counts = [text.count(",") + 1 if len(text) > 2 else 0 for text in texts]
    values = _integers(texts) if plain else None
    if values is not None and len(values) == sum(counts):
        return values, list(counts)
    read = [_plain(text) for text in texts]
    flat = [number for one in read for number in one or ()]
    return np.array(flat, np.uint32), [None if one is None else len(one) for one in read]


def _integers(texts: Sequence[str]) -> Array | None:
    """Read the numbers inside brackets, eight digits at a time; None where there is anything else.

    The eight bytes before a comma are one word; those that are before the number are cleared. Then
    pairs, fours and eights of digits are summed by multiplication, for all numbers at once.
    """
    padded = "," * MAX_DIGITS + ",".join(text[1:-1] for text in texts) + ","
    text = np.frombuffer(padded.encode(), np.uint8)
    commas = np.flatnonzero(text == COMMA)
    lengths = np.diff(commas) - 1
    some = lengths > 0
    ends, lengths = commas[1:][some], lengths[some]
    digits = np.count_nonzero((text >= ZERO) & (text <= NINE))
    if digits + len(commas) != len(text) or (len(lengths) and lengths.max() > MAX_DIGITS):
        return None
    words: Array = np.ndarray((len(text) - MAX_DIGITS + 1,), "<u8", text, strides=(1,))
    before = (8 * (MAX_DIGITS - lengths)).astype(np.uint64)
    word = words[ends - MAX_DIGITS] >> before << before
    for mask, factor, shift in (
        (0x0F0F0F0F0F0F0F0F, 10 << 8 | 1, 8),
        (0x00FF00FF00FF00FF, 100 << 16 | 1, 16),
        (0x0000FFFF0000FFFF, 10_000 << 32 | 1, 32),
    ):
        word = (word & np.uint64(mask)) * np.uint64(factor) >> np.uint64(shift)
    return word.astype(np.uint32)


def _slowly(texts: Texts, read: Callable[[str], list[Any] | None], dtype: pl.DataType) -> pl.Series:
    found = [None if text is None else read(text) for text in texts]
    return pl.Series(found, dtype=pl.List(pl.List(dtype)))


def _plain(text: str | None) -> list[int] | None:
    given = _json(text or "")
    return given if _are_ids(given) else None


def _choices(text: str) -> list[list[int]] | None:
    given = _json(text)
    if _are_ids(given):
        return [given]
    return given if isinstance(given, list) and all(map(_are_ids, given)) else None


def _are_ids(given: Any) -> bool:
    return isinstance(given, list) and all(type(n) is int and 0 <= n < 1 << 32 for n in given)


def _weights(text: str) -> list[Any] | None:
    # parsed only where it is a list: base64 may read as a JSON number
    given = _json(text) if text.startswith("[") else [text]
    if isinstance(given, list) and all(isinstance(number, int | float) for number in given):
        return [given]
    decoded = list(_floats(given)) if isinstance(given, list) else []
    return None if None in decoded else decoded


def _floats(given: list[Any]) -> Iterator[list[float] | None]:
    for text in given:
        raw = _decoded(text)
        yield None if raw is None else np.frombuffer(raw, "<f4").tolist()


def _decoded(text: Any) -> bytes | None:
    """Decode base64 of whole float32 numbers; None where it was cut short."""
    if not isinstance(text, str):
        return None
    try:
        raw = b64decode(text, validate=True)
    except ValueError:
        return None
    return raw if len(raw) % 4 == 0 else None


def _json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except ValueError:
        return None
