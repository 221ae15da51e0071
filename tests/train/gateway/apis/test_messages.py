"""`/v1/messages` through Anthropic's own client: what the server gets, and what the client gets."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic
from tests.fake_vllm import CALLS, REASONING

from ltrain_instrument.allow import Allow

USER = {"role": "user", "content": "go w3"}
SYSTEM = {"role": "system", "content": "be brief"}
TOOL = {
    "name": "weather",
    "description": "the weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
PIXEL = {"type": "base64", "media_type": "image/png", "data": "AA"}
LIMIT = 99


@pytest.fixture
def client(stage: Any) -> Iterator[Any]:
    identity = stage.identity
    base = f"{stage.url}/rollout/{identity.rollout}/attempt/{identity.attempt}"
    key = stage.key(allow=tuple(Allow))
    with Anthropic(base_url=base, api_key=key, max_retries=0) as client:
        yield client


def create(client: Any, content: Any, **fields: Any) -> Any:
    messages = [{"role": "user", "content": content}]
    return client.messages.create(
        **{"model": "claude", "max_tokens": LIMIT, "messages": messages, **fields}
    )


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def tool_use(number: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": number, "name": "f", "input": {"a": 1}}


def chat_call(number: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": '{"a": 1}'}
    return {"id": number, "type": "function", "function": function}


def tool_result(number: str, content: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": number, "content": content}


def test_a_message_is_a_chat_completion(client: Any, stage: Any) -> None:
    message = create(client, "go w3 w14", system="be brief")
    assert (message.content[0].text, message.stop_reason) == ("w3 w14", "end_turn")
    assert (message.model, message.role) == ("claude", "assistant")
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (2, 1, 2)
    (span,) = stage.spans()
    attributes = span["attributes"]
    assert span["name"] == "chat claude"
    assert attributes["ltrain.prompt_token_ids"] == "[1000,1001,1002]"
    assert attributes["ltrain.response_token_ids"] == "[3,14]"
    assert attributes["ltrain.rollout.id"] == "abc"


@pytest.mark.parametrize(
    ("turns", "messages"),
    [
        ([USER], [USER]),
        ([{"role": "user", "content": [text("go w3")]}], [USER]),
        (
            [{"role": "user", "content": [text("w3"), {"type": "image", "source": PIXEL}]}],
            [
                {
                    "role": "user",
                    "content": [
                        text("w3"),
                        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
                    ],
                }
            ],
        ),
        (
            [
                USER,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": ""},
                        text("y"),
                        text("es"),
                        tool_use("a"),
                        tool_use("b"),
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        tool_result("a", "1"),
                        tool_result("b", [text("2")]),
                        text("w3"),
                    ],
                },
            ],
            [
                USER,
                {
                    "role": "assistant",
                    "reasoning": "hm",
                    "content": "yes",
                    "tool_calls": [chat_call("a"), chat_call("b")],
                },
                {"role": "tool", "tool_call_id": "a", "content": "1"},
                {"role": "tool", "tool_call_id": "b", "content": "2"},
                {"role": "user", "content": "w3"},
            ],
        ),
    ],
)
def test_blocks_become_messages(
    client: Any, vllm: Any, turns: list[Any], messages: list[Any]
) -> None:
    create(client, "", messages=turns)
    assert vllm.requests[-1]["messages"] == messages
    create(client, "", messages=turns, system=[text("be brief")])
    assert vllm.requests[-1]["messages"] == [SYSTEM, *messages]


def test_settings_become_those_of_a_chat(client: Any, vllm: Any) -> None:
    create(
        client,
        "w3",
        tools=[TOOL],
        tool_choice={"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
        stop_sequences=["end"],
        metadata={"user_id": "u"},
        thinking={"type": "disabled"},
        extra_body={"seed": 5, "temperature": 0.5},
    )
    function = {
        "name": "weather",
        "description": "the weather",
        "parameters": TOOL["input_schema"],
    }
    assert vllm.requests[-1] == {
        "model": "policy",
        "messages": [{"role": "user", "content": "w3"}],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "parallel_tool_calls": False,
        "stop": ["end"],
        "temperature": 0.5,
        "max_tokens": LIMIT,
        "seed": 5,
        "logprobs": True,
        "return_token_ids": True,
    }


@pytest.mark.parametrize(
    ("choice", "expected"), [("auto", "auto"), ("any", "required"), ("none", "none")]
)
def test_choices_of_tools(client: Any, vllm: Any, choice: str, expected: str) -> None:
    create(client, "w3", tools=[TOOL], tool_choice={"type": choice})
    assert vllm.requests[-1]["tool_choice"] == expected


def test_a_begun_answer_is_continued(client: Any, vllm: Any) -> None:
    create(client, "", messages=[USER, {"role": "assistant", "content": "w3"}])
    sent = vllm.requests[-1]
    assert (sent["continue_final_message"], sent["add_generation_prompt"]) == (True, False)


@pytest.mark.parametrize(
    "words", ["go w3 w14", "think w3", "call", "think call w3 w14", "think call", "cut w3", "go"]
)
def test_a_stream_has_the_message_of_a_complete_response(
    client: Any, stage: Any, words: str
) -> None:
    complete = create(client, words)
    turn = {"role": "user", "content": words}
    with client.messages.stream(model="claude", max_tokens=LIMIT, messages=[turn]) as stream:
        events = list(stream)
        streamed = stream.get_final_message()
    for block in streamed.content:
        if block.type == "text":
            block.text = block.text.strip()
    kept = {"content", "stop_reason", "stop_sequence", "model", "role"}
    assert streamed.model_dump(include=kept) == complete.model_dump(include=kept)
    assert streamed.usage.output_tokens == complete.usage.output_tokens
    kinds = [event.type for event in events]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert kinds.count("content_block_start") == kinds.count("content_block_stop")
    first, second = (span["attributes"] for span in stage.spans())
    assert first.get("ltrain.response_token_ids") == second.get("ltrain.response_token_ids")


def test_a_turn_comes_back_as_one_message(client: Any, vllm: Any) -> None:
    message = create(client, "think call w3")
    assert message.stop_reason == "tool_use"
    turn = {"role": "assistant", "content": [block.to_dict() for block in message.content]}
    results = [tool_result(call["id"], "w5") for call in CALLS]
    create(client, "", messages=[USER, turn, {"role": "user", "content": results}])
    assert vllm.requests[-1]["messages"][1] == {
        "role": "assistant",
        "reasoning": REASONING,
        "content": "w3",
        "tool_calls": CALLS,
    }


def test_why_a_message_ended(client: Any) -> None:
    assert create(client, "cut w3").stop_reason == "max_tokens"
    stopped = create(client, "matched w3")
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "matched")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"max_tokens": None}, "'max_tokens' of the request cannot be None"),
        ({"messages": []}, "'messages' of the request cannot be []"),
        ({"tools": [{"type": "telepathy_1", "name": "t"}]}, "the type 'telepathy_1'"),
        ({"tool_choice": {"type": "mcp"}}, "'tool_choice' of the request has the type 'mcp'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document"}]}]},
            "'messages.0' of the request has a block of type 'document'",
        ),
        ({"system": [{"type": "image"}]}, "'system' of the request has a block of type 'image'"),
        ({"temperature": -1}, "that Anthropic's messages API allows"),
    ],
)
def test_what_a_chat_cannot_do_is_refused_with_its_name(
    client: Any, vllm: Any, fields: dict[str, Any], sentence: str
) -> None:
    body = {"model": "policy", "max_tokens": LIMIT, "messages": [USER], **fields}
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.post("/v1/messages", body=body, cast_to=object)
    assert sentence in str(refused.value)
    assert vllm.requests == []


@pytest.mark.parametrize("words", ["boom", "vanish w3 w14"])
def test_a_failed_stream_raises_an_error(client: Any, words: str) -> None:
    turn = {"role": "user", "content": words}
    with (
        pytest.raises(anthropic.APIError, match="fails on this request"),
        client.messages.stream(model="claude", max_tokens=LIMIT, messages=[turn]) as stream,
    ):
        list(stream)


def test_the_key_may_be_in_the_header_of_older_clients(stage: Any) -> None:
    identity, sent = stage.identity, {"model": "m", "max_tokens": 9, "messages": [USER]}
    path = f"/rollout/{identity.rollout}/attempt/{identity.attempt}/v1/messages"
    answer = stage.http.post(path, json=sent, headers={"x-api-key": stage.key()})
    assert answer.json()["content"][0]["text"] == "w3"
    assert stage.http.post(path, json=sent).status_code == 401
