"""Results as JSON: the conversion in the worker, and the strict parsing in the runner."""

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from pydantic import BaseModel

from ltrain_train.workers.attempt import AttemptResult, Outcome
from ltrain_train.workers.results import _encode_result, parse_json


class Colour(Enum):
    RED = "red"


@dataclass
class Line:
    name: str
    price: Decimal


class Order(BaseModel):
    lines: list[Line]
    paid: date


def encode(result: Any) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(
        _encode_result("r.1", AttemptResult(Outcome.OK, "", result))
    )
    return message


def test_json_is_parsed() -> None:
    assert parse_json('{"a": [1, 2.5, null, "NaN"]}') == {"a": [1, 2.5, None, "NaN"]}


@pytest.mark.parametrize("text", ["", "{", "NaN", '{"a": -Infinity}', "[" * 100_000])
def test_invalid_json_raises_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (
            Order(lines=[Line("tea", Decimal("1.50"))], paid=date(2026, 1, 2)),
            {"lines": [{"name": "tea", "price": "1.50"}], "paid": "2026-01-02"},
        ),
        ({"line": Line("tea", Decimal("1.50"))}, {"line": {"name": "tea", "price": "1.50"}}),
        ([np.float32(0.5), np.int64(3), np.bool_(True)], [0.5, 3, True]),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00"),
        ((Path("a/b"), Colour.RED), ["a/b", "red"]),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    ],
    ids=["pydantic", "dataclass", "scalars", "array", "datetime", "path", "uuid"],
)
def test_a_result_of_common_types_is_converted(result: Any, expected: Any) -> None:
    message = encode(result)
    assert (message["outcome"], message["result"]) == ("ok", expected)


@pytest.mark.parametrize("result", [{1, 2}, object(), Order, Line, np.float32("nan"), [Path]])
def test_a_result_of_another_type_is_an_error_of_the_agent(result: Any) -> None:
    message = encode(result)
    assert message["outcome"] == "error"
    assert message["reason"].startswith("The agent's result must be JSON")


def test_a_circular_result_is_an_error_of_the_agent() -> None:
    line = Line("tea", Decimal(1))
    line.name = line  # type: ignore[assignment]
    assert encode(line)["outcome"] == "error"
