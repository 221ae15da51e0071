"""An agent controls a tool's schema: checking it takes bounded time, whatever it contains."""

import json
import time
from typing import Any

import pytest
from tests.security.hostile import deep

from ltrain_transforms.rules import tool_schema

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
EXPONENTIAL = "^(a+)+$"
SLOW = "a" * 40 + "!"
TWICE = {"allOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}}]}
CHAIN = {
    f"d{level}": {"dependentSchemas": {"a": {"$ref": to}, "b": {"$ref": to}}}
    for level in range(40)
    for to in (f"#/$defs/d{level + 1}",)
}
DISTINCT = [{"a": number} for number in range(4_000)]


def in_time(schema: Any, value: Any) -> bool:
    began = time.process_time()
    try:
        return tool_schema.matches_schema(json.dumps(schema), json.dumps(value))
    finally:
        assert time.process_time() - began < 5, "seconds"


def test_a_pattern_takes_linear_time() -> None:
    tool = {"name": "t", "parameters": {"properties": {"a": {"pattern": "(a+)+$"}}}}
    request = {"type": "tool_call", "name": "t", "arguments": {"a": SLOW}}
    output = json.dumps([{"role": "assistant", "parts": [request]}])
    began = time.process_time()
    assert tool_schema.count_faulty_requests(json.dumps([tool]), output) == (0, 1)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"$ref": "#"}, {"a": 1}),
        ({"$ref": "http://127.0.0.1:9/x"}, {"a": 1}),
        ({"$ref": "#/nowhere"}, {"a": 1}),
        ({"pattern": "("}, "a"),
        ({"pattern": "a{99999999999999999999}"}, "a"),
        (TWICE, json.loads("[" * 60 + "]" * 60)),
        ({"unevaluatedProperties": False, "$defs": CHAIN, "$ref": "#/$defs/d0"}, {"a": 1, "b": 1}),
        ({"allOf": [{"items": {}}] * 1_000}, [1] * 20_000),
        ({"items": {"pattern": "a"}}, ["a"] * 100_000),
        ({"allOf": [{}] * 30_000}, 1),
        ({"allOf": [True] * 30_000}, 1),
        ({"patternProperties": {EXPONENTIAL: {}}, "additionalProperties": False}, {SLOW: 1}),
        (
            {"allOf": [{"patternProperties": {EXPONENTIAL: {}}}], "unevaluatedProperties": False},
            {SLOW: 1},
        ),
        ({"$ref": "http://json-schema.org/draft-04/schema#"}, {"enum": DISTINCT}),
    ],
    ids=lambda cell: json.dumps(cell)[:40],
)
def test_a_schema_that_cannot_be_checked_accepts_any_value(schema: Any, value: Any) -> None:
    assert in_time(schema, value)


def test_items_are_compared_in_linear_time() -> None:
    unique = {"uniqueItems": True}
    assert in_time(unique, DISTINCT)
    assert in_time(unique, [1, True, "1"])
    assert not in_time(unique, [*DISTINCT, {"a": 0}])


@pytest.mark.parametrize(
    "part",
    [
        {"$schema": DRAFT_7, "pattern": EXPONENTIAL},
        {"$id": DRAFT_7, "properties": {"b": {"$ref": "#"}}, "pattern": EXPONENTIAL},
    ],
    ids=["draft", "address"],
)
def test_no_part_of_a_schema_chooses_another_validator(part: dict[str, Any]) -> None:
    assert not in_time({"properties": {"a": part}}, {"a": SLOW})


def test_a_schema_of_another_draft_is_checked() -> None:
    schema = {
        "$schema": DRAFT_7,
        "$id": "http://127.0.0.1:9/tool",
        "definitions": {"count": {"type": "integer"}},
        "properties": {"count": {"$ref": "#/definitions/count"}},
        "additionalProperties": False,
    }
    assert in_time(schema, {"count": 1})
    assert not in_time(schema, {"count": "one"})
    assert not in_time(schema, {"other": 1})


def test_a_large_request_of_an_honest_tool_is_checked() -> None:
    names = [f"f{number}" for number in range(10)]
    row = {"properties": {name: {"type": "string"} for name in names}, "required": names}
    rows = [dict.fromkeys(names, "text") for _ in range(500)]
    assert in_time({"items": row}, rows)
    assert not in_time({"items": row}, [*rows, {}])


def test_arguments_that_are_nested_too_deep_are_no_json() -> None:
    assert not tool_schema.matches_schema('{"type": "object"}', deep(5_000))
