"""What is read of JSON that nobody vouches for can be written again."""

import json
from typing import Any

import pytest

from ltrain_transforms.traces.untrusted import parse_json


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NaN", "NaN"),
        ('{"a": [-Infinity, 1]}', {"a": ["-Infinity", 1]}),
        ('{"a": 1e999}', {"a": "1e999"}),
        ("[-1e999, 1e300]", ["-1e999", 1e300]),
        (f"[NaN, {2**63}, {2**64}, {-(2**63) - 1}]", ["NaN", 2**63, 2.0**64, -(2.0**63)]),
        (f"[{2**63}, {2**64}, {-(2**63) - 1}]", [2**63, 2.0**64, -(2.0**63)]),
        ("9" * 5_000, "9" * 5_000),
        (f"[{'9' * 5_000}]", ["9" * 5_000]),
        ("[" * 100_000, "[" * 100_000),
        ('["\\ud83d", NaN]', ["\ufffd", "NaN"]),
    ],
    ids=lambda cell: repr(cell)[:20],
)
def test_no_number_is_infinite_or_beyond_64_bits(text: str, value: Any) -> None:
    assert parse_json(text) == value
    assert type(parse_json(text)) is type(value)
    json.dumps(parse_json(text), allow_nan=False).encode()
