"""The number of values in a request is counted before it is parsed."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ltrain_instrument.errors import BadSetting
from ltrain_train.gateway.apis import request_limits
from ltrain_train.gateway.apis.request_limits import RequestLimits
from ltrain_train.gateway.errors import Refused

TEXTS = st.text(st.sampled_from('"\\,[]{}a\n'), max_size=12)
JSON = st.recursive(
    TEXTS | st.none() | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
)


def starts(value: Any) -> int:
    """Return the number of commas and opening brackets outside of texts."""
    if not isinstance(value, list | dict):
        return 0
    inner = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(0, len(inner) - 1) + sum(map(starts, inner))


@given(JSON, st.integers(1, 9))
def test_values_are_counted_outside_of_texts(value: Any, scanned: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_limits, "SCANNED_BYTES", scanned)
        counted = request_limits._count_values(json.dumps(value).encode())
    assert counted == starts(value)


def test_a_text_of_commas_has_one_value() -> None:
    RequestLimits(items=1).require_values(json.dumps({"a": "," * 1000}).encode())
    with pytest.raises(Refused, match="at most 32 JSON values"):
        RequestLimits(items=1).require_values(json.dumps([1] * 33).encode())


@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_a_limit_is_a_positive_number(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("LTRAIN_REQUEST_ITEMS", value)
    with pytest.raises(BadSetting, match="LTRAIN_REQUEST_ITEMS"):
        RequestLimits.from_settings()


def test_the_environment_sets_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LTRAIN_REQUEST_ITEMS", "7")
    monkeypatch.setenv("LTRAIN_REQUEST_LIMIT", "2")
    assert RequestLimits.from_settings() == RequestLimits(2 << 20, 7)
