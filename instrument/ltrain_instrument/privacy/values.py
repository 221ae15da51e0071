"""Attribute values: text, JSON inside text, and values that OTLP can represent."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

TOKEN_KEYS = frozenset(
    (
        *("token_ids", "prompt_token_ids", "response_token_ids"),
        *("logprobs", "top_logprobs", "prompt_logprobs", "response_logprobs"),
    )
)
"""Keys, and last parts of attribute names, of token data, which decodes to the text."""

_INT64_LIMIT = 1 << 63


def parse_json(text: str) -> Any:
    """Return the JSON object or array in a text; None if it holds neither."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def dump_json(value: Any) -> str:
    """Return JSON without spaces, in encodable characters."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if is_encodable(text) else json.dumps(value, separators=(",", ":"))


def is_encodable(text: str) -> bool:
    """Return whether a text has no lone surrogates, which UTF-8 cannot encode."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def to_otlp_value(value: Any) -> Any:
    """Return the value if OTLP can represent it, else the value as text."""
    if isinstance(value, str):
        return value if is_encodable(value) else value.encode(errors="backslashreplace").decode()
    if isinstance(value, int):
        return value if -_INT64_LIMIT <= value < _INT64_LIMIT else _digits(value)
    if isinstance(value, bytes):
        return value
    if isinstance(value, Sequence):
        return reuse_if_equal(value, tuple(to_otlp_value(each) for each in value))
    if isinstance(value, Mapping):
        return reuse_if_equal(
            value, {to_otlp_value(key): to_otlp_value(each) for key, each in value.items()}
        )
    return value


def _digits(value: int) -> str:
    try:
        return str(value)
    except ValueError:  # Python converts at most 4,300 decimal digits
        return hex(value)


def reuse_if_equal(old: Any, new: Any) -> Any:
    """Return `old` if no element changed, so that callers can detect a change by identity."""
    pairs = zip(old.values(), new.values(), strict=False) if isinstance(old, Mapping) else None
    if len(old) == len(new) and all(a is b for a, b in pairs or zip(old, new, strict=True)):
        return old if pairs is None or list(old) == list(new) else new
    return new


def encoded_size(value: Any) -> int:
    """Return the encoded bytes of a value, accurate to a few bytes."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode(errors="replace"))
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(encoded_size(key) + encoded_size(each) + 6 for key, each in value.items())
    if isinstance(value, Sequence):
        return sum(encoded_size(each) + 4 for each in value)
    return 9


def remove_tokens(value: Any) -> Any:
    """Return a value, with JSON inside texts, without token ids and log-probabilities."""
    if isinstance(value, str):
        if not any(key in value for key in TOKEN_KEYS):
            return value
        parsed = parse_json(value)
        remaining = remove_tokens(parsed)
        return value if remaining is parsed else dump_json(remaining)
    if isinstance(value, Mapping):
        remaining = {
            k: remove_tokens(each) for k, each in value.items() if not _is_token_data(k, each)
        }
        return reuse_if_equal(value, remaining)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return reuse_if_equal(value, [remove_tokens(each) for each in value])
    return value


def _is_token_data(key: object, value: object) -> bool:
    """Return whether it is token data: `logprobs` may also be a boolean or a number."""
    return key in TOKEN_KEYS and not isinstance(value, bool | int | float | None)


def is_token_attribute(name: str, value: object) -> bool:
    """Return whether an attribute holds token ids or log-probabilities."""
    return _is_token_data(name.rpartition(".")[2], value)
