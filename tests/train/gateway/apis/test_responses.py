"""`/v1/responses` through OpenAI's own client: what the server gets, and what the client gets."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from tests.fake_vllm import CALLS, REASONING

from ltrain_instrument.allow import Allow
from ltrain_train.gateway.apis.responses import EFFORTS

USER = {"role": "user", "content": "go w3"}
SYSTEM = {"role": "system", "content": "be brief"}
ASSISTANT = {"role": "assistant", "content": "yes"}
ANSWER = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "yes"}],
}
PIXEL = "data:image/png;base64,AA"
IMAGE = {"type": "input_image", "image_url": PIXEL, "detail": "low"}
CHAT_IMAGE = {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}}
TOOL = {
    "type": "function",
    "name": "weather",
    "description": "the weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
SCHEMA = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}, "strict": True}


@pytest.fixture
def client(stage: Any) -> Iterator[OpenAI]:
    identity = stage.identity
    base = f"{stage.url}/rollout/{identity.rollout}/attempt/{identity.attempt}/v1"
    key = stage.key(allow=(Allow.CONSTRAINED, Allow.MULTIMODAL))
    with OpenAI(base_url=base, api_key=key, max_retries=0) as client:
        yield client


def message(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def reasoning(text: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}] if text else []
    return {"type": "reasoning", "id": "r", "summary": [], "content": content}


def call(number: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": number, "name": "f", "arguments": "{}"}


def chat_call(number: str) -> dict[str, Any]:
    return {"id": number, "type": "function", "function": {"name": "f", "arguments": "{}"}}


def output(number: str) -> dict[str, Any]:
    content: Any = "w2" if number == "a" else [{"type": "input_text", "text": "w2"}]
    return {"type": "function_call_output", "call_id": number, "output": content}


def test_a_response_is_a_chat_completion(client: Any, stage: Any) -> None:
    response = client.responses.create(
        model="gpt-5", instructions="be brief", input="go w3 w14", max_output_tokens=9
    )
    assert (response.output_text, response.status, response.model) == (
        "w3 w14",
        "completed",
        "gpt-5",
    )
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (3, 2)
    assert response.usage.input_tokens_details.cached_tokens == 1
    (span,) = stage.spans()
    attributes = span["attributes"]
    assert span["name"] == "chat gpt-5"
    assert attributes["ltrain.prompt_token_ids"] == "[1000,1001,1002]"
    assert attributes["ltrain.response_token_ids"] == "[3,14]"
    assert attributes["ltrain.policy.version"] == 0
    assert attributes["ltrain.rollout.id"] == "abc"


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ("go w3", [USER]),
        ([USER], [USER]),
        ([{"role": "developer", "content": "be brief"}, USER], [SYSTEM, USER]),
        ([message({"type": "input_text", "text": "go w3"})], [USER]),
        (
            [message({"type": "input_text", "text": "w3"}, IMAGE)],
            [message({"type": "text", "text": "w3"}, CHAT_IMAGE)],
        ),
        (
            [USER, reasoning("hm"), ANSWER, call("a"), call("b"), output("a"), output("b")],
            [
                USER,
                {**ASSISTANT, "reasoning": "hm", "tool_calls": [chat_call("a"), chat_call("b")]},
                {"role": "tool", "tool_call_id": "a", "content": "w2"},
                {"role": "tool", "tool_call_id": "b", "content": "w2"},
            ],
        ),
        (
            [ANSWER, ANSWER, call("a"), reasoning(""), ANSWER, reasoning("hm"), USER],
            [
                ASSISTANT,
                {**ASSISTANT, "tool_calls": [chat_call("a")]},
                ASSISTANT,
                {"role": "assistant", "reasoning": "hm"},
                USER,
            ],
        ),
    ],
)
def test_items_become_messages(client: Any, vllm: Any, items: Any, messages: list[Any]) -> None:
    client.responses.create(model="policy", input=items)
    assert vllm.requests[-1]["messages"] == messages
    client.responses.create(model="policy", input=items, instructions="be brief")
    sent = vllm.requests[-1]["messages"]
    if messages[0] == SYSTEM:
        assert sent == [{**SYSTEM, "content": "be brief\n\nbe brief"}, *messages[1:]]
    else:
        assert sent == [SYSTEM, *messages]


def test_settings_become_those_of_a_chat(client: Any, vllm: Any) -> None:
    client.responses.create(
        model="policy",
        input="w3",
        tools=[TOOL],
        tool_choice={"type": "function", "name": "weather"},
        parallel_tool_calls=False,
        text={"format": SCHEMA, "verbosity": "low"},
        reasoning={"effort": "low"},
        max_output_tokens=7,
        store=False,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="k",
        extra_body={"seed": 5},
    )
    sent = vllm.requests[-1]
    function = {name: TOOL[name] for name in ("name", "description", "parameters", "strict")}
    schema = {name: SCHEMA[name] for name in ("name", "schema", "strict")}
    assert sent == {
        "model": "policy",
        "messages": [{"role": "user", "content": "w3"}],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "parallel_tool_calls": False,
        "response_format": {"type": "json_schema", "json_schema": schema},
        "reasoning_effort": "low",
        "max_completion_tokens": 7,
        "seed": 5,
        "logprobs": True,
        "return_token_ids": True,
    }


def test_an_effort_that_vllm_knows_is_that_of_the_chat(client: Any, vllm: Any) -> None:
    for effort in EFFORTS:
        client.responses.create(model="policy", input="w3", reasoning={"effort": effort})
        assert vllm.requests[-1]["reasoning_effort"] == effort
    client.responses.create(model="policy", input="w3", reasoning={"effort": "extreme"})
    assert "reasoning_effort" not in vllm.requests[-1]


@pytest.mark.parametrize(
    "words", ["go w3 w14", "think w3", "call", "think call w3 w14", "think call", "cut w3", "go"]
)
def test_a_stream_has_the_output_of_a_complete_response(
    client: Any, stage: Any, words: str
) -> None:
    complete = client.responses.create(model="policy", input=words)
    with client.responses.stream(model="policy", input=words) as stream:
        events = list(stream)
    streamed = events[-1].response
    items: list[Any] = [item.to_dict() for item in streamed.output]
    for item in items:
        for part in item.get("content") or ():
            part.pop("parsed", None)
            part["text"] = part["text"].strip()
        item.pop("parsed_arguments", None)
    assert items == [item.to_dict() for item in complete.output]
    assert streamed.status == complete.status
    assert streamed.usage is not None and complete.usage is not None
    assert streamed.usage.output_tokens == complete.usage.output_tokens
    numbers = [event.sequence_number for event in events if hasattr(event, "sequence_number")]
    assert numbers == sorted(numbers)
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == ("response.incomplete" if "cut" in words else "response.completed")
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done")
    first, second = (span["attributes"] for span in stage.spans())
    assert first.get("ltrain.response_token_ids") == second.get("ltrain.response_token_ids")


def test_the_items_of_a_turn_come_back_as_one_message(client: Any, vllm: Any) -> None:
    response = client.responses.create(model="policy", input="think call w3")
    kinds = [item.type for item in response.output]
    assert kinds == ["reasoning", "message", "function_call", "function_call"]
    turn = [item.to_dict() for item in response.output]
    outputs = [
        {"type": "function_call_output", "call_id": call["id"], "output": "w5"} for call in CALLS
    ]
    client.responses.create(model="policy", input=[*turn, *outputs])
    message, *_ = vllm.requests[-1]["messages"]
    assert message == {
        "role": "assistant",
        "reasoning": REASONING,
        "content": "w3",
        "tool_calls": CALLS,
    }


def test_a_cut_response_is_incomplete(client: Any) -> None:
    response = client.responses.create(model="policy", input="cut w3")
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_are_included_on_request(client: Any, stream: bool) -> None:
    fields: Any = {
        "model": "policy",
        "input": "w3 w14",
        "include": ["message.output_text.logprobs"],
    }
    if stream:
        with client.responses.stream(**fields) as events:
            response: Any = events.get_final_response()
    else:
        response = client.responses.create(**fields)
    (item,) = response.output
    assert [each.token for each in item.content[0].logprobs] == ["w3", "w14"]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"input": "w3", "previous_response_id": "resp_1"},
            "'previous_response_id' is refused: the gateway keeps no responses",
        ),
        (
            {"input": "w3", "conversation": "c"},
            "'conversation' is refused: the gateway keeps nothing",
        ),
        ({"input": "w3", "background": True}, "'background' is refused: the gateway keeps nothing"),
        ({"input": "w3", "tools": [{"type": "telepathy"}]}, "the type 'telepathy', which the"),
        (
            {"input": "w3", "tool_choice": {"type": "telepathy"}},
            "'tool_choice' of the request has the type",
        ),
        (
            {"input": [{"type": "item_reference", "id": "x"}]},
            "'input.0' of the request has the type",
        ),
        (
            {"input": [{"type": "compaction", "encrypted_content": "x"}]},
            "'input.0' of the request is a 'compaction', which only the server that made it",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
            "a part of type 'input_file'",
        ),
        ({"input": 7}, "'input' of the request cannot be 7"),
        ({"input": []}, "'messages' of the request cannot be []"),
        ({"input": "w3", "temperature": -1}, "'temperature' of the request cannot be -1"),
        ({"input": "w3", "n": 2}, "'n' is refused"),
        ({}, "The request has no 'input'"),
    ],
)
def test_what_a_chat_cannot_do_is_refused_with_its_name(
    client: Any, vllm: Any, fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.post("/responses", body={"model": "policy", **fields}, cast_to=object)
    assert sentence in str(refused.value)
    assert vllm.requests == []


def test_a_recipe_may_refuse_a_constrained_response(stage: Any) -> None:
    sent = {"model": "policy", "input": "w3", "text": {"format": SCHEMA}}
    refused = stage.post("/v1/responses", sent, key=stage.key(constrained="refused"))
    assert refused.status_code == 400
    assert 'allow = ["constrained"]' in refused.json()["error"]["message"]


@pytest.mark.parametrize("words", ["boom", "vanish w3 w14"])
def test_a_failed_stream_raises_an_error(client: Any, words: str) -> None:
    with (
        pytest.raises(openai.APIError, match="fails on this request"),
        client.responses.stream(model="policy", input=words) as stream,
    ):
        list(stream)


def test_production_is_answered(stage: Any) -> None:
    answer = stage.post("/v1/responses", {"model": "policy", "input": "w3"}, identity=None)
    assert answer.json()["output"][0]["content"][0]["text"] == "w3"
    assert stage.spans()[0]["attributes"]["ltrain.mode"] == "prod"
