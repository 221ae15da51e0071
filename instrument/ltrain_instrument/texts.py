"""Values of attributes as what they are: text, JSON inside of text, numbers that OTLP can hold."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

TOKEN_KEYS = frozenset(
    (
        *("token_ids", "prompt_token_ids", "response_token_ids"),
        *("logprobs", "top_logprobs", "prompt_logprobs", "response_logprobs"),
    )
)
"""Keys, and last parts of attribute names, that hold tokens in numbers: they decode to the text."""

_LARGEST = 1 << 63


def parsed(text: str) -> Any:
    """Give the object or array that a text is in JSON; None when it is none."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def written(value: Any) -> str:
    """Give JSON without spaces, in characters that can be sent."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if encodable(text) else json.dumps(value, separators=(",", ":"))


def encodable(text: str) -> bool:
    """Say whether a text is free of lone surrogates, which UTF-8 has no bytes for."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def plain(value: Any) -> Any:
    """Give what OTLP can hold: the value itself, or where it cannot, the same said in text."""
    if isinstance(value, str):
        return value if encodable(value) else value.encode(errors="backslashreplace").decode()
    if isinstance(value, int):
        return value if -_LARGEST <= value < _LARGEST else _digits(value)
    if isinstance(value, bytes):
        return value
    if isinstance(value, Sequence):
        return same(value, tuple(plain(one) for one in value))
    if isinstance(value, Mapping):
        return same(value, {plain(key): plain(one) for key, one in value.items()})
    return value


def _digits(value: int) -> str:
    try:
        return str(value)
    except ValueError:  # Python writes at most 4,300 decimal digits
        return hex(value)


def same(old: Any, new: Any) -> Any:
    """Give the old one where nothing in it changed, so that a change can be told by identity."""
    pairs = zip(old.values(), new.values(), strict=False) if isinstance(old, Mapping) else None
    if len(old) == len(new) and all(a is b for a, b in pairs or zip(old, new, strict=True)):
        return old if pairs is None or list(old) == list(new) else new
    return new


def size(value: Any) -> int:
    """Give the bytes of a value on the wire, to within a few."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode(errors="replace"))
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(size(key) + size(one) + 6 for key, one in value.items())
    if isinstance(value, Sequence):
        return sum(size(one) + 4 for one in value)
    return 9


def without_tokens(value: Any) -> Any:
    """Give a value, JSON inside of texts included, without token ids and log-probabilities."""
    if isinstance(value, str):
        if not any(key in value for key in TOKEN_KEYS):
            return value
        inside = parsed(value)
        kept = without_tokens(inside)
        return value if kept is inside else written(kept)
    if isinstance(value, Mapping):
        kept = {k: without_tokens(one) for k, one in value.items() if not _tokens(k, one)}
        return same(value, kept)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return same(value, [without_tokens(one) for one in value])
    return value


def _tokens(key: object, value: object) -> bool:
    """Say whether it is tokens: `logprobs` is also the name of a switch, true or a number."""
    return key in TOKEN_KEYS and not isinstance(value, bool | int | float | None)


def token_attribute(name: str, value: object) -> bool:
    """Say whether an attribute is token ids or log-probabilities."""
    return _tokens(name.rpartition(".")[2], value)
