"""Messages are read in one way, whatever anyone wrote into them."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property_examples import examples

from ltrain_transforms.traces import (
    REQUEST,
    RESULT,
    TEXT,
    Fields,
    Message,
    MessagePart,
    ToolRequest,
    ToolResult,
    messages_text,
    new_message,
    parse_json,
    read_message,
    read_messages,
    request_part,
    result_part,
    text_part,
    tool_requests,
    write_messages,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
"""Any value that a span may hold as JSON: also NaN, integers beyond 64 bits, half surrogates."""

PARTS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from([TEXT, REQUEST, RESULT, "reasoning", "image"]) | JSON,
        **dict.fromkeys(("content", "text", "id", "name", "response", "result"), JSON),
        "arguments": JSON | JSON.map(json.dumps),
    },
)
MESSAGES = st.lists(
    JSON
    | st.fixed_dictionaries(
        {},
        optional={
            "role": st.sampled_from(["system", "user", "assistant", "model", "tool"]) | JSON,
            "parts": st.lists(PARTS | JSON, max_size=4) | JSON,
            "content": st.lists(PARTS | JSON, max_size=4) | JSON,
            "finish_reason": JSON,
        },
    ),
    max_size=4,
)


def rebuilt_part(part: MessagePart) -> Fields:
    """Return a part that is written from what was read of it, not from its fields."""
    if part.type == TEXT:
        return text_part(part.text)
    if part.type == REQUEST:
        return request_part(*part.request)
    if part.type == RESULT and part.result.value:
        return result_part(str(part.result.id), part.result.value)
    return part.fields


@settings(max_examples=examples(300))
@given(MESSAGES)
def test_what_was_read_is_read_again(values: list[Any]) -> None:
    messages = read_messages(json.dumps(values))
    assert read_messages(write_messages(messages)) == messages
    assert read_messages(messages_fields(messages)) == messages


def messages_fields(messages: list[Message]) -> list[Fields]:
    return [message.fields for message in messages]


@settings(max_examples=examples(300))
@given(MESSAGES)
def test_a_message_written_from_its_parts_has_the_same_text_requests_and_results(
    values: list[Any],
) -> None:
    for message in read_messages(json.dumps(values)):
        rebuilt = new_message(message.role, [rebuilt_part(part) for part in message.parts])
        again = read_message(rebuilt)
        assert (again.role, again.text) == (message.role, message.text)
        assert [part.type for part in again.parts] == [part.type for part in message.parts]
        for one, other in zip(again.tool_requests, message.tool_requests, strict=True):
            assert one[:2] == other[:2]
            assert one.parsed_arguments == parse_json(other.parsed_arguments)
        assert [r.text for r in again.tool_results if r.value] == [
            r.text for r in message.tool_results if r.value
        ]
        assert again.is_assistant == message.is_assistant


def test_the_parts_of_a_message() -> None:
    (message,) = read_messages(
        json.dumps(
            [
                {
                    "role": "assistant",
                    "parts": [
                        {"type": "reasoning", "content": "hm"},
                        {"type": "text", "content": "On it. "},
                        "Wait.",
                        {"type": "tool_call", "id": "c1", "name": "f", "arguments": '{"a": 1}'},
                        {"type": "tool_call", "id": 2, "arguments": {"a": 1}},
                        {"type": "tool_call_response", "id": "c0", "response": {"b": "ü"}},
                        {"type": "tool_call_response", "id": "c0", "result": "fine"},
                        None,
                    ],
                    "finish_reason": "tool_call",
                }
            ]
        )
    )
    assert message.role == "assistant"
    assert message.is_assistant
    assert message.text == "On it. Wait."
    assert message.finish_reason == "tool_call"
    assert message.tool_requests == [
        ToolRequest("c1", "f", '{"a": 1}'),
        ToolRequest("2", None, {"a": 1}),
    ]
    assert [each.parsed_arguments for each in message.tool_requests] == [{"a": 1}, {"a": 1}]
    assert message.tool_results == [ToolResult("c0", {"b": "ü"}), ToolResult("c0", "fine")]
    assert [each.text for each in message.tool_results] == ['{"b": "ü"}', "fine"]


def test_a_message_of_a_chat_api_is_read_by_its_content() -> None:
    plain, listed, empty = read_messages(
        [
            {"role": "user", "content": "hello"},
            {"role": "user", "parts": [], "content": [{"type": "text", "text": "a"}, "b"]},
            {"role": "user", "content": None},
        ]
    )
    assert plain.text == "hello"
    assert listed.text == "ab"
    assert empty.parts == []
    assert messages_text([plain, listed, empty]) == "helloab"


def test_only_objects_in_a_list_are_messages() -> None:
    assert read_messages('{"role": "user"}') == []
    assert read_messages("no JSON") == []
    assert read_messages(None) == []
    assert read_messages(["user", 1, {"role": 5}]) == [read_message({"role": 5})]
    assert read_messages([{"role": 5}])[0].role == ""
    assert tool_requests(read_messages([{"parts": "text"}, {"parts": [{"type": ["text"]}]}])) == []
