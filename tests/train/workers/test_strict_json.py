"""Strict parsing of JSON from agents."""

import pytest

from ltrain_train.workers.results import parse_json


def test_json_is_parsed() -> None:
    assert parse_json('{"a": [1, 2.5, null, "NaN"]}') == {"a": [1, 2.5, None, "NaN"]}


@pytest.mark.parametrize("text", ["", "{", "NaN", '{"a": -Infinity}', "[" * 100_000])
def test_invalid_json_raises_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)
