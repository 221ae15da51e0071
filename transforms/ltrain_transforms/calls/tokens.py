"""Decode token ids and log-probabilities from text, a whole column at once.

Ids are JSON without spaces; log-probabilities are base64 of little-endian float32 (SEMCONV). For
several choices each is a list. Plain lists of numbers are decoded too. Other text becomes null.
"""

from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
import polars as pl
import pyarrow as pa

MAX_DIGITS = 8
"""Longest id, in digits, on the fast path; no vocabulary needs more."""
CHUNK = 64
"""Texts that are decoded at once: more of them do not fit into a core's cache."""
COMMA, ZERO, NINE = ord(","), ord("0"), ord("9")

Texts = Sequence[str | None]
Array = np.ndarray[Any, Any]


def id_lists(texts: Texts) -> pl.Series:
    """Decode `[1,2,3]`, one list of ids for each text, to `List(UInt32)`.

    Of a text that continues the one before it, as a chat's next prompt does, only the rest is
    decoded.
    """
    present = [text for text in texts if text]
    added = [_added(before, text) for before, text in pairwise(["", *present])]
    decoded = _decode([new or text for new, text in zip(added, present, strict=True)])
    lists: list[Array | None] = []
    for new, ids in zip(added, decoded, strict=True):
        lists.append(ids if new is None else _joined(lists[-1], ids))
    by_text = iter(lists)
    every = [next(by_text) if text else None for text in texts]
    values = [np.empty(0, np.uint32), *(ids for ids in every if ids is not None)]
    lengths = [None if ids is None else len(ids) for ids in every]
    return to_lists(pl.Series(np.concatenate(values)), lengths)


def _added(before: str, text: str) -> str | None:
    """Return the list of the ids that `text` adds to `before`; None where it does not begin so."""
    start = before[:-1] + ","
    continues = before.endswith("]") and text.startswith(start)
    return "[" + text[len(start) :] if continues else None


def _joined(before: Array | None, added: Array | None) -> Array | None:
    """Return both lists as one; None where one cannot be read or is empty: `[1,]` is not JSON."""
    if before is None or added is None or not len(before) or not len(added):
        return None
    return np.concatenate([before, added])


def _decode(texts: Sequence[str]) -> Iterator[Array | None]:
    for start in range(0, len(texts), CHUNK):
        values, counts = _ids(texts[start : start + CHUNK])
        end = 0
        for count in counts:
            begin, end = end, end + (count or 0)
            yield None if count is None else values[begin:end]


def id_choices(texts: Texts) -> pl.Series:
    """Decode `[4,5]` or `[[4],[5,6]]`, the ids of each choice, to `List(List(UInt32))`."""
    if any(text is not None and text.startswith("[[") for text in texts):
        return _decode_each(texts, _choices, pl.UInt32())
    return one_choice(id_lists(texts))


def logprob_choices(texts: Texts) -> pl.Series:
    """Decode base64, a list of it, or a list of numbers, to `List(List(Float32))`."""
    if any(text is not None and text.startswith("[") for text in texts):
        return _decode_each(texts, _logprobs, pl.Float32())
    raw = [_decoded(text) for text in texts]
    values = np.frombuffer(b"".join(one for one in raw if one), "<f4").astype(np.float32)
    return one_choice(
        to_lists(pl.Series(values), [None if one is None else len(one) // 4 for one in raw])
    )


def to_lists(values: pl.Series, lengths: Sequence[int | None]) -> pl.Series:
    """Split `values` into lists of these lengths; a null length is a null list."""
    ends = np.cumsum([0, *(length or 0 for length in lengths)], dtype=np.int64)
    return _nested(values, ends, np.array([length is not None for length in lengths], np.bool_))


def one_choice(inner: pl.Series) -> pl.Series:
    """Wrap each list into a list of its own."""
    return _nested(inner, np.arange(len(inner) + 1), inner.is_not_null().to_numpy())


def _nested(values: pl.Series, ends: Array, valid: Array) -> pl.Series:
    # from buffers: `pa.array` of a sequence imports pandas where it is installed
    flat = values.to_arrow()
    buffers = [np.packbits(valid, bitorder="little"), ends]
    nested = pa.Array.from_buffers(
        pa.large_list(flat.type), len(valid), list(map(pa.py_buffer, buffers)), children=[flat]
    )
    return pl.Series(pl.from_arrow(nested))


def _ids(texts: Sequence[str]) -> tuple[Array, list[int | None]]:
    """Return the ids of all texts, and their count for each; None for a text without ids."""
    plain = all(text[0] == "[" and text[-1] == "]" for text in texts)
    counts = [text.count(",") + 1 if len(text) > 2 else 0 for text in texts]
    values = _integers(texts) if plain else None
    if values is not None and len(values) == sum(counts):
        return values, list(counts)
    lists = [_parse_ids(text) for text in texts]
    flat = [number for one in lists for number in one or ()]
    return np.array(flat, np.uint32), [None if one is None else len(one) for one in lists]


def _integers(texts: Sequence[str]) -> Array | None:
    """Decode the numbers inside brackets, eight digits at a time; None where there is other text.

    The eight bytes before a comma are one word; the bytes before the number are cleared. Then
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


def _decode_each(
    texts: Texts, decode: Callable[[str], list[Any] | None], dtype: pl.DataType
) -> pl.Series:
    values = [None if text is None else decode(text) for text in texts]
    return pl.Series(values, dtype=pl.List(pl.List(dtype)))


def _parse_ids(text: str | None) -> list[int] | None:
    value = _json(text or "")
    return value if _are_ids(value) else None


def _choices(text: str) -> list[list[int]] | None:
    value = _json(text)
    if _are_ids(value):
        return [value]
    return value if isinstance(value, list) and all(map(_are_ids, value)) else None


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 32 for n in value)


def _logprobs(text: str) -> list[Any] | None:
    # parsed only where it is a list: base64 may look like a JSON number
    values = _json(text) if text.startswith("[") else [text]
    if isinstance(values, list) and all(isinstance(number, int | float) for number in values):
        return [values]
    decoded = list(_floats(values)) if isinstance(values, list) else []
    return None if None in decoded else decoded


def _floats(texts: list[Any]) -> Iterator[list[float] | None]:
    for text in texts:
        raw = _decoded(text)
        yield None if raw is None else np.frombuffer(raw, "<f4").tolist()


def _decoded(text: Any) -> bytes | None:
    """Decode base64 of whole float32 numbers; None where it was cut."""
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
