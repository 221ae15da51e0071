"""Values as JSON, as digests, and as what is looked for in prompts."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.transforms.states.conftest import TraceBuilder, assistant, user

from ltrain_transforms.states.values import (
    last_text,
    parse_structured,
    search_texts,
    to_json,
    value_digest,
    without_ids,
)
from ltrain_transforms.traces import parse_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(value=JSON)
def test_equal_values_have_equal_texts_whatever_wrote_them(value: Any) -> None:
    texts = [json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)]
    assert [to_json(parse_json(text)) for text in texts] == [to_json(value)] * 2
    assert parse_json(to_json(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (None, None),
        ("", ""),
        ("no json {", "no json {"),
        ('"half a pair: \\ud800"', "half a pair: \ufffd"),
        ("[" * 300 + "]" * 300, "[" * 300 + "]" * 300),
        ("[" * 100_000, "[" * 100_000),
        ("[" * 3 + "]" * 3, [[[]]]),
    ],
    ids=["nothing", "empty", "no JSON", "surrogate", "deep", "deep and broken", "shallow"],
)
def test_what_is_no_json_stays_text(text: str | None, value: Any) -> None:
    assert parse_json(text) == value


def test_not_a_number_is_read() -> None:
    assert to_json(parse_json('{"score": NaN}')) == '{"score":"NaN"}'


def test_a_text_is_no_number() -> None:
    assert parse_structured("42") == "42"
    assert parse_structured(' {"rows": 42}') == {"rows": 42}


def constructor(text: str, id: str) -> dict[str, Any]:
    kwargs = {"content": text, "type": "ai", "id": id, "tool_calls": [{"name": "f", "id": id}]}
    return {"lc": 1, "type": "constructor", "id": ["langchain", "AIMessage"], "kwargs": kwargs}


def to_dict(text: str, id: str) -> dict[str, Any]:
    return {"type": "ai", "data": {"content": text, "id": id, "usage_metadata": {"total": len(id)}}}


def openai(text: str, id: str) -> dict[str, Any]:
    call = {"id": id, "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    return {"role": "assistant", "content": text, "tool_calls": [call], "id": id}


def gen_ai(text: str, id: str) -> dict[str, Any]:
    part = {"type": "tool_call", "id": id, "name": "f", "arguments": {"a": 1}}
    return {"role": "assistant", "parts": [{"type": "text", "content": text}, part]}


@pytest.mark.parametrize("message", [constructor, to_dict, openai, gen_ai])
def test_messages_compare_by_what_they_say(message: Any) -> None:
    first, same, other = (message(*each) for each in (("hi", "1"), ("hi", "22"), ("ho", "1")))
    digests = [value_digest(without_ids([each])) for each in (first, same, other)]
    assert digests[0] == digests[1] != digests[2]
    assert last_text({"messages": [first]}) == "hi"
    assert search_texts([message("what it says", "an id that is much longer")]) == ("what it says",)


def test_a_prompt_shows_a_list_if_it_shows_any_item() -> None:
    documents = [
        {"page_content": "Kiel has a tower.", "metadata": {"source": "https://a.long/address"}},
        {"content": "So has Bremen.", "id": "d2"},
        {"rows": [1, 2]},
    ]
    assert search_texts(documents) == ("Kiel has a tower.", "So has Bremen.")
    assert search_texts("42") == ()


def test_bad_input_is_no_error(trace: TraceBuilder) -> None:
    trace.call("llm", "m", input="no json", output='{"role": "assistant"}')
    trace.call("llm", "m", input='[1, null, {"parts": [2, {"type": "image"}]}]', output="[[]]")
    trace.call("llm", "m", input=json.dumps([{"content": None}]), output="[{}]")
    trace.call("tool", "t", input="[" * 5000, output="]")
    trace.call("retrieval", "r", input="", output='{"documents": 3}')
    trace.call("reranker", "x")
    trace.node("n", [1, 2])
    trace.llm([user("who?")], assistant("me, says everyone"))
    assert trace.actions == [None, None, None, "answer"]
