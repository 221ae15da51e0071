"""Spans of an instrumentation of one's own get the attributes of the gen_ai conventions."""

import json
from typing import Any

import polars as pl
from polars.testing import assert_frame_equal
from tests.transforms.made import span, spans

from ltrain_transforms.recipe import DeclaredDialect
from ltrain_transforms.source.declared_dialects import read_declared


def dialect(fields: dict[str, str], **more: Any) -> DeclaredDialect:
    return DeclaredDialect.model_validate({"kind": "llm", "fields": fields, **more})


def attributes(frame: pl.DataFrame) -> list[dict[str, str]]:
    return frame["attributes"].to_list()


def test_the_first_dialect_that_fits_counts_and_other_spans_stay() -> None:
    frame = spans(
        span("other", {"x": "1"}),
        span("one", {"kind": "LLM", "who": "a"}, scope="acme"),
        span("two", {"kind": "STEP", "who": "b"}, scope="acme"),
    )
    read = read_declared(
        frame,
        [
            dialect({"agent": "who"}, scope="acme", where={"kind": "LLM"}),
            dialect({"name": "span.name"}, kind="tool", scope="acme", where={"kind": "*"}),
        ],
    )
    assert attributes(read) == [
        {"x": "1"},
        {"kind": "LLM", "who": "a", "gen_ai.operation.name": "chat", "gen_ai.agent.name": "a"},
        {
            "kind": "STEP",
            "who": "b",
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "two",
        },
    ]
    assert_frame_equal(read.drop("attributes"), frame.drop("attributes"))


def test_a_path_that_a_value_lacks_leaves_the_field_open() -> None:
    declared = dialect(
        {"model": "r $.model", "input_messages": "r $.messages", "output_messages": "answer"},
        scope="acme",
    )
    rows = [
        {"r": json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]})},
        {"r": "not JSON", "answer": "plain text"},
    ]
    read = read_declared(
        spans(*(span(str(n), row, scope="acme") for n, row in enumerate(rows))), [declared]
    )
    full, broken = attributes(read)
    assert full["gen_ai.request.model"] == "m"
    assert json.loads(full["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "hi"}]}
    ]
    assert "gen_ai.output.messages" not in full
    assert broken.keys() == {"r", "answer", "gen_ai.operation.name", "gen_ai.output.messages"}
    [answer] = json.loads(broken["gen_ai.output.messages"])
    assert (answer["role"], answer["parts"][0]["content"]) == ("assistant", "plain text")
