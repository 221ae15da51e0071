"""Responses as bytes: events split at any position, and fields replaced in place."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property_examples import examples

from ltrain_instrument.tokens.calls import PolicyUrls
from ltrain_instrument.tokens.events import EventSplitter
from ltrain_instrument.tokens.fields import parse_and_replace

HIDDEN = {"token_ids": "null", "prompt_token_ids": "null", "logprobs": "null"}
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=6
)
FIELDS = st.sampled_from(["id", "token_ids", "logprobs", "prompt_token_ids", "é\\"]) | st.text()
OBJECTS = st.dictionaries(FIELDS.filter(lambda name: name != "choices"), VALUES)
STYLES = st.sampled_from([{}, {"indent": 1}, {"separators": (",", ":"), "ensure_ascii": False}])


def without_hidden(parsed: dict[str, Any]) -> dict[str, Any]:
    return {name: None if name in HIDDEN else value for name, value in parsed.items()}


@settings(max_examples=examples(50))
@given(OBJECTS, st.lists(OBJECTS), STYLES)
def test_hidden_fields_are_null_and_nothing_else_changes(
    outer: dict[str, Any], choices: list[dict[str, Any]], style: dict[str, Any]
) -> None:
    response = {**outer, "choices": choices}
    payload, visible = parse_and_replace(f" {json.dumps(response, **style)}\n", HIDDEN)
    assert payload == response
    null_fields = {
        **without_hidden(outer),
        "choices": [without_hidden(choice) for choice in choices],
    }
    assert visible == f" {json.dumps(null_fields, **style)}\n"


def test_other_bytes_stay_unchanged() -> None:
    text = '{"a":1.50E+3 , "token_ids" : [1, 2],"b":"\\u00e9\\ud83d","choices":[{"logprobs":{}}]}'
    visible = (
        '{"a":1.50E+3 , "token_ids" : null,"b":"\\u00e9\\ud83d","choices":[{"logprobs":null}]}'
    )
    assert parse_and_replace(text, HIDDEN)[1] == visible


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "{", '{"a"', '{"a":}', '{"a":1,}', "{} {}", "null"]
)
def test_text_that_is_not_an_object_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_and_replace(text, HIDDEN)


@settings(max_examples=examples(50))
@given(
    st.lists(st.sampled_from(["data: 1", "data:2", ": still here", "event: x\ndata: 3"])),
    st.sampled_from(["\n", "\r\n"]),
    st.lists(st.integers(0, 200)),
)
def test_events_are_complete_wherever_the_stream_is_split(
    events: list[str], line: str, cuts: list[int]
) -> None:
    sent = [(event.replace("\n", line) + 2 * line).encode() for event in events]
    stream = b"".join(sent) + b"data: unfini"
    at = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    reader = EventSplitter()
    events_found = [e for a, b in pairwise(at) for e in reader.feed(stream[a:b])]
    assert [event.raw for event in events_found] == sent
    data = {"data: 1": b"1", "data:2": b"2", ": still here": b"", "event: x\ndata: 3": b"3"}
    assert [event.data for event in events_found] == [data[event] for event in events]
    assert reader.remainder == b"data: unfini"
    assert all(event.with_data(event.data) == event.raw for event in events_found)


@pytest.mark.parametrize(
    ("url", "operation"),
    [
        ("http://localhost:8001/v1/chat/completions", "chat"),
        ("http://LOCALHOST:8001/v1/completions?x=1", "text_completion"),
        ("http://localhost:8001/v1/responses", None),
        ("http://localhost:8001/v10/chat/completions", None),
        ("http://localhost:8002/v1/chat/completions", None),
        ("https://localhost:8001/v1/chat/completions", None),
        ("https://policy.example/any/chat/completions", "chat"),
        ("https://policy.example:443/chat/completions", "chat"),
    ],
)
def test_only_calls_below_a_base_url_go_to_a_policy(url: str, operation: str | None) -> None:
    urls = PolicyUrls(["http://localhost:8001/v1/", "https://policy.example"])
    assert urls.operation("POST", url) == operation
    assert urls.operation("GET", url) is None
