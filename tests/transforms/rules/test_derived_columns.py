"""Derived columns, which rules may name beside the columns of `calls`."""

import json
from typing import Any

import polars as pl
import pytest

from ltrain_transforms.recipe import Recipe, Reward
from ltrain_transforms.rules.derived_columns import (
    DERIVATIONS,
    INPUTS,
    add_derived_columns,
    add_schema_match,
)
from ltrain_transforms.rules.tool_schema import (
    count_faulty_requests,
    matches_schema,
    schema_error,
)
from ltrain_transforms.rules.unicode_scripts import foreign_script_share, minority_script_share
from ltrain_transforms.tables import CALLS, DERIVED_COLUMNS

OPENAI = {"type": "function", "function": {"name": "f", "parameters": {"required": ["x"]}}}
GEN_AI = {"type": "function", "name": "f", "parameters": {"required": ["x"]}}
ANTHROPIC = {"name": "f", "input_schema": '{"required": ["x"]}'}


def answer(*requests: tuple[str | None, Any]) -> str:
    parts = [{"type": "tool_call", "name": name, "arguments": value} for name, value in requests]
    return json.dumps([{"role": "assistant", "parts": parts}])


@pytest.mark.parametrize("shape", [OPENAI, GEN_AI, ANTHROPIC])
def test_requests_are_checked_against_every_shape_of_definition(shape: dict[str, Any]) -> None:
    offered = json.dumps([shape])
    requests: tuple[tuple[str | None, Any], ...] = (
        ("f", {"x": 1}),
        ("f", '{"x": 1}'),
        ("f", {}),
        ("f", "no json"),
        ("g", {}),
        (None, {}),
    )
    assert count_faulty_requests(offered, answer(*requests)) == (2, 2)


@pytest.mark.parametrize(
    ("offered", "output"),
    [
        (None, answer(("f", {}))),
        (json.dumps([OPENAI]), answer()),
        (json.dumps([OPENAI]), None),
        ("no json", answer(("f", {}))),
        ("[3]", answer(("f", {}))),
    ],
)
def test_requests_that_cannot_be_checked_are_null(offered: str | None, output: str | None) -> None:
    assert count_faulty_requests(offered, output) == (None, None)


def test_an_invalid_schema_accepts_any_arguments() -> None:
    broken = [{"name": "f", "parameters": {"type": "objct"}}]
    assert count_faulty_requests(json.dumps(broken), answer(("f", {"x": 1}))) == (0, 0)
    assert schema_error({"type": "objct"}) is not None
    assert matches_schema('{"type": "integer"}', "3") and not matches_schema(
        '{"type": "integer"}', '"3"'
    )


@pytest.mark.parametrize(
    ("text", "shown", "mixed", "strange"),
    [
        ("plain words", "a question", 0.0, 0.0),
        ("ab 首都", "a question", 0.5, 0.5),
        ("ab 首都", "什么", 0.5, 0.5),
        ("ab 首都", "what is 首都?", 0.5, 0.0),
        ("東京は日本のとうきょう", "東京", 0.0, 0.0),
        ("да нет", "yes", 0.0, 1.0),
        ("é à la carte", "question", 0.0, 0.0),
        ("ᚠᚢ ab", "ab", 0.5, 0.5),
        ("12 + 30 = 42", "что", None, None),
        (None, "a question", None, None),
        ("words", None, 0.0, None),
    ],
)
def test_shares_of_scripts(
    text: str | None, shown: str | None, mixed: float | None, strange: float | None
) -> None:
    answer_, input_ = (pl.Series([one], dtype=pl.String) for one in (text, shown))
    assert (minority_script_share(answer_)[0], foreign_script_share(answer_, input_)[0]) == (
        mixed,
        strange,
    )


def calls(*rows: dict[str, Any]) -> pl.DataFrame:
    made = [
        {"execution_id": "e", "call_id": str(seq), "seq": seq, "kind": "llm", **row}
        for seq, row in enumerate(rows)
    ]
    columns = {name: [row.get(name) for row in made] for name in CALLS.schema}
    return pl.DataFrame(columns, CALLS.schema)


def says(text: str) -> str:
    messages = [{"role": "assistant", "parts": [{"type": "text", "content": text}]}]
    return json.dumps(messages, ensure_ascii=False)  # as `calls` writes it


def test_an_answer_in_the_form_of_a_chat_api_is_read() -> None:
    plain, parts = '[{"role": "assistant", "content": "Lisbon"}]', says("Lisbon")
    answered = add_derived_columns(calls({"output": plain}, {"output": parts}), ["answer"])
    assert answered["answer"].to_list() == ["Lisbon", "Lisbon"]


@pytest.mark.parametrize(
    ("result", "later", "used"),
    [
        ("Lisbon has 545,923 people", "line\nlisbon", True),
        ("42", "it is 42", True),
        ("42", "it is 142", False),
        ("Where is Lisbon", "Paris", False),
        ("capital", "capital", None),
        ("东京", "答 东", True),
        ("", "anything", None),
    ],
)
def test_a_result_is_used_if_a_later_answer_repeats_a_new_word(
    result: str, later: str, used: bool | None
) -> None:
    """The requester's input asks for a capital."""
    trace = calls(
        {"input": '[{"content": "the capital?"}]', "output": answer(("f", {}))},
        {"kind": "tool", "result": result, "requested_by": "0"},
        {"input": f'[{{"content": "{result}"}}]', "output": says(later)},
    )
    assert add_derived_columns(trace, ["used"])["used"].to_list() == [None, used, None]


def test_a_result_without_a_later_call_is_null() -> None:
    trace = calls({"output": says("a")}, {"kind": "tool", "result": "b23", "requested_by": "0"})
    assert add_derived_columns(trace, ["used"])["used"].to_list() == [None, None]


def test_the_final_answer_is_the_last_one_with_text() -> None:
    trace = calls({"output": says("a")}, {"output": says("b")}, {"output": answer(("f", {}))})
    assert add_derived_columns(trace, ["final"])["final"].to_list() == [False, True, False]


def test_depth_counts_agents_and_ends_on_a_cycle() -> None:
    """A workflow around an agent with a sub-agent; then two nodes that are each other's parent."""
    trace = calls(
        {"kind": "agent"},
        {"kind": "agent", "parent_id": "0"},
        {"parent_id": "1"},
        {"kind": "tool", "parent_id": "1"},
        {"kind": "agent", "parent_id": "3"},
        {"parent_id": "4"},
        {"kind": "node", "parent_id": "7"},
        {"kind": "node", "parent_id": "6"},
    )
    assert add_derived_columns(trace, ["depth"])["depth"].to_list() == [0, 0, 1, 1, 1, 2, 0, 0]


def test_fits_checks_results_too() -> None:
    trace = calls({"output": says('{"a": 1}')}, {"kind": "tool", "output": "[]"}, {"kind": "tool"})
    assert add_schema_match(trace, {"type": "object"})["fits"].to_list() == [True, False, None]


def test_every_derived_column_declares_its_inputs() -> None:
    assert set(INPUTS) == set(DERIVED_COLUMNS.schema) == {*DERIVATIONS, "fits"}
    for name, reads in INPUTS.items():
        assert set(reads) <= set(CALLS.schema)
        keys = {"name": "r", "on": "llm", "value": "1", "when": f"{name} IS NULL", "schema": {}}
        usual = Reward.model_validate(keys)
        assert Recipe.model_validate({"policy": [{"name": "p"}], "reward": [usual]})
