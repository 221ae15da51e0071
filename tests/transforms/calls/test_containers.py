"""LLM spans around LLM calls: one call, a retry, or an agent around several."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import permutations
from tests.transforms.made import span, spans

from ltrain_transforms.calls.from_spans import calls

SDK, OTHER, FRAMEWORK = "openai.v1", "anthropic", "langchain"


def chat(question: str = "", answer: str = "", **more: str) -> dict[str, str]:
    attributes = {"gen_ai.operation.name": "chat"}
    for name, role, text in (("input", "user", question), ("output", "assistant", answer)):
        if text:
            message = [{"role": role, "parts": [{"type": "text", "content": text}]}]
            attributes[f"gen_ai.{name}.messages"] = json.dumps(message)
    return attributes | more


def read(*made: dict[str, Any]) -> list[tuple[str, str, list[str]]]:
    """Return kind, name and spans of each call."""
    rows, drops = calls(spans(*made))
    assert drops.is_empty()
    return rows.select("kind", "name", "source_spans").rows()


def outer(attributes: dict[str, str], **more: Any) -> dict[str, Any]:
    return span("outer", attributes, at=(0, 90), scope=FRAMEWORK, **more)


def inner(name: str, attributes: dict[str, str], at: tuple[int, int], **more: Any) -> Any:
    return span(name, attributes, at=at, **{"parent": "outer", "scope": SDK, **more})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (chat("a", "b"), chat("b", "c")),
        (chat("a", "b"), chat("a", "c")),  # the same prompt, sampled twice
        (chat("a", "b"), chat("a", "b")),
        (chat(), chat()),  # without content
        (chat("a", "b", **{"gen_ai.response.id": "1"}), chat("c", **{"error.type": "E"})),
    ],
)
@pytest.mark.parametrize("around", [chat("b", "c"), chat(), chat("a")])
def test_an_llm_span_around_two_calls_is_a_node(
    one: dict[str, str], other: dict[str, str], around: dict[str, str]
) -> None:
    rows = read(outer(around), inner("one", one, (1, 9)), inner("other", other, (10, 19)))
    assert [(kind, ids) for kind, _, ids in rows] == [
        ("node", ["outer"]),
        ("llm", ["one"]),
        ("llm", ["other"]),
    ]


@given(permutations(range(5)))
@settings(max_examples=20)
def test_each_call_inside_keeps_its_own_spans_in_any_order(order: list[int]) -> None:
    made = [
        outer(chat("b", "c"), name="invoke_agent guide"),
        inner("one", chat("a", "b"), (1, 9), scope=OTHER),
        inner("in one", chat("a", "b"), (2, 8), parent="one"),
        inner("two", chat("b", "c"), (10, 19), scope=OTHER),
        inner("in two", chat("b", "c"), (11, 18), parent="two"),
    ]
    assert read(*(made[index] for index in order)) == [
        ("agent", "guide", ["outer"]),
        ("llm", "one", ["one", "in one"]),
        ("llm", "two", ["two", "in two"]),
    ]


def test_calls_of_two_sdks_that_follow_each_other_are_two() -> None:
    rows = read(
        outer(chat("b", "c")),
        inner("one", chat("a", "b"), (1, 9)),
        inner("two", chat("b", "c"), (10, 19), scope=OTHER),
    )
    assert [kind for kind, _, _ in rows] == ["node", "llm", "llm"]


def test_two_records_of_a_short_call_are_one_call() -> None:
    around = span("outer", chat("a", "b"), at=(0, 3), scope=FRAMEWORK)
    one = inner("one", chat("a", "b"), (1, 2))
    [(kind, _, ids)] = read(around, one, inner("same", chat("a", "b"), (1, 2), scope=OTHER))
    assert (kind, set(ids)) == ("llm", {"outer", "one", "same"})


def test_two_instrumentations_of_one_call_and_a_retry_are_one_call() -> None:
    failed = chat("a", **{"error.type": "Timeout"})
    rows = read(
        outer(chat("a", "b")),
        inner("failed", failed, (1, 9)),
        inner("one", chat("a", "b"), (10, 19)),
        inner("same", chat("a", "b"), (11, 18), scope=OTHER),
    )
    [(kind, _, ids)] = rows
    assert (kind, set(ids)) == ("llm", {"outer", "failed", "one", "same"})


def test_an_agents_calls_below_its_nodes_make_its_llm_span_an_agent() -> None:
    step = {"openinference.span.kind": "CHAIN"}
    made = [
        inner("step 1", step, (1, 20)),
        inner("step 2", step, (21, 40)),
        inner("one", chat("a", "b"), (2, 19), parent="step 1"),
        inner("two", chat("b", "c"), (22, 39), parent="step 2"),
    ]
    around = outer(chat("b", "c", **{"gen_ai.agent.name": "guide"}))
    assert [row[:2] for row in read(around, *made)] == [
        ("agent", "guide"),
        ("node", "step 1"),
        ("llm", "one"),
        ("node", "step 2"),
        ("llm", "two"),
    ]
    # a stream's span that stayed current is a call of its own
    stream = outer(chat("x", "y"))
    assert [row[0] for row in read(stream, *made)].count("llm") == 3


@pytest.mark.parametrize(
    ("around", "within", "count"),
    [
        (chat("a", "b"), chat("a", "b"), 1),
        (chat("a", "b"), chat("a", "c"), 1),
        (chat("a", "b"), chat("x", "b"), 1),
        (chat("a"), chat(answer="b"), 1),
        (chat("a", "b"), chat("x", "y"), 2),
        (chat("a"), chat("x", "y"), 2),
        (chat("a", "b", **{"gen_ai.response.id": "1"}), chat("x", "y"), 2),
        (
            chat("a", "b", **{"gen_ai.response.id": "1"}),
            chat("x", "y", **{"gen_ai.response.id": "1"}),
            1,
        ),
    ],
)
def test_nested_llm_spans_are_one_call_where_something_agrees(
    around: dict[str, str], within: dict[str, str], count: int
) -> None:
    rows = read(outer(around), inner("inner", within, (1, 9)))
    assert [kind for kind, _, _ in rows] == ["llm"] * count


def test_the_input_of_an_agent_is_the_users_message() -> None:
    messages = [
        {"role": "user", "parts": [{"type": "text", "content": "weather?"}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "w"}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "no"}]},
    ]
    around = {**chat("", "sorry"), "gen_ai.input.messages": json.dumps(messages)}
    rows, _ = calls(
        spans(
            outer(around, name="invoke_agent guide"),
            inner("one", chat("weather?", "b"), (1, 9)),
            inner("two", chat("no", "sorry"), (10, 19)),
        )
    )
    assert rows.row(0, named=True)["input"] == "weather?"
    assert rows.row(0, named=True)["output"] == "sorry"


def test_a_span_named_as_an_agents_is_one_around_a_single_call() -> None:
    """google-adk: the agent's span repeats the call, and holds a stream's chunks as messages."""
    around = chat("a", "b")
    parts = [[{"type": "text", "content": text}] for text in ("One ", "by one.", "One by one.")]
    messages = [{"role": "assistant", "parts": each} for each in parts]
    around["gen_ai.output.messages"] = json.dumps(messages)
    rows, _ = calls(
        spans(
            outer(around, name="invoke_agent guide"),
            inner("one", chat("a", "One by one."), (1, 9)),
            inner("tool", {"gen_ai.operation.name": "execute_tool"}, (10, 11)),
        )
    )
    assert rows.select("kind", "agent", "parent_id", "output").rows()[0] == (
        *("agent", "guide", None),
        "One by one.",
    )
    assert rows.select("kind", "parent_id").rows()[1:] == [("llm", "outer"), ("tool", "outer")]


def test_an_agents_span_without_a_recorded_call_is_the_call() -> None:
    rows = read(outer(chat("a", "b"), name="invoke_agent guide"))
    assert [(kind, ids) for kind, _, ids in rows] == [("llm", ["outer"])]
