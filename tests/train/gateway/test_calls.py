"""A call through the gateway: the request to vLLM, the response to the agent, and the span."""

import json
import struct
from base64 import b64encode
from typing import Any

import httpx
import pytest

from ltrain_instrument.allow import Allow

TRACE = {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-00"}


def packed(*logprobs: float) -> str:
    return b64encode(struct.pack(f"<{len(logprobs)}f", *logprobs)).decode()


def logprob(token: int) -> float:
    return float(struct.unpack("<f", struct.pack("<f", -0.1 - token / 7))[0])


def test_a_call_is_answered_and_its_span_is_complete(stage: Any, vllm: Any) -> None:
    response = stage.ask("go w3 w14", headers=TRACE, temperature=0.5, max_tokens=9)
    assert response.status_code == 200
    assert response.json() == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "policy",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "w3 w14", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
            }
        ],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "prompt_tokens_details": {"cached_tokens": 1},
            "completion_tokens_details": None,
        },
        "prompt_token_ids": None,
    }
    (span,) = stage.spans()
    assert (span["name"], span["scope"], span["kind"]) == ("chat policy", "ltrain.gateway", 2)
    assert (span["trace"], span["parent"]) == ("a" * 32, "b" * 16)
    assert span["attributes"] == {
        "ltrain.run.id": "demo",
        "ltrain.task.id": "t1",
        "ltrain.wave": 2,
        "ltrain.sample.index": 0,
        "ltrain.rollout.id": "abc",
        "ltrain.attempt.id": 1,
        "ltrain.mode": "train",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "policy",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.input.messages": json.dumps(
            [{"role": "user", "parts": [{"type": "text", "content": "go w3 w14"}]}],
            separators=(",", ":"),
        ),
        "ltrain.policy.name": "policy",
        "ltrain.policy.version": 0,
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.model": "policy",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.output.messages": json.dumps(
            [
                {
                    "role": "assistant",
                    "parts": [{"type": "text", "content": "w3 w14"}],
                    "finish_reason": "stop",
                }
            ],
            separators=(",", ":"),
        ),
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 1,
        "ltrain.prompt_token_ids": "[1000,1001,1002]",
        "ltrain.prompt_token_count": 3,
        "ltrain.response_token_ids": "[3,14]",
        "ltrain.response_logprobs": packed(logprob(3), logprob(14)),
        "ltrain.response_token_count": 2,
        "ltrain.recorder": "ltrain.gateway",
        "ltrain.delivered": True,
    }
    (sent,) = vllm.requests
    assert sent["model"] == "policy"
    assert sent["logprobs"] is True and sent["return_token_ids"] is True


def test_a_stream_writes_the_same_span_and_hides_unrequested_fields(stage: Any, load: Any) -> None:
    whole = stage.ask("go w3 w14", headers=TRACE)
    events = load("stage").events(stage.ask("go w3 w14", headers=TRACE, stream=True))
    assert events[-1] == "[DONE]"
    text = "".join(event["choices"][0]["delta"]["content"] for event in events[:-1])
    assert text.split() == whole.json()["choices"][0]["message"]["content"].split()
    assert not any(event.get("prompt_token_ids") for event in events[:-1])
    choices = [event["choices"][0] for event in events[:-1]]
    assert not any(choice["logprobs"] or choice.get("token_ids") for choice in choices)
    first, second = (span["attributes"] for span in stage.spans())
    assert first.pop("gen_ai.usage.cache_read.input_tokens") == 1  # no stream says it unasked
    texts = [each.pop("gen_ai.output.messages") for each in (first, second)]
    assert first == second
    assert texts[0].replace("w3", " w3") == texts[1]  # the fake's chunks begin with a space


@pytest.mark.parametrize("stream", [False, True])
def test_the_agent_gets_the_bytes_that_vllm_sends(stage: Any, vllm: Any, stream: bool) -> None:
    body = {"model": "policy", "messages": [{"role": "user", "content": "go w3 h7 w14"}]}
    direct = httpx.post(f"{vllm.url}/v1/chat/completions", json={**body, "stream": stream})
    assert stage.ask("go w3 h7 w14", stream=stream).content == direct.content


@pytest.mark.parametrize("stream", [False, True])
def test_the_client_gets_the_fields_that_it_requests(stage: Any, load: Any, stream: bool) -> None:
    sent = {"logprobs": True, "return_token_ids": True, "stream": stream}
    response = stage.ask("w3 w14", **sent, stream_options={"include_usage": True})
    if stream:
        chunks = load("stage").events(response)[:-1]
        choices = [chunk["choices"][0] for chunk in chunks[:-1]]
        ids = [token for choice in choices for token in choice.get("token_ids", ())]
        tokens = [each for c in choices for each in (c["logprobs"] or {}).get("content", ())]
        prompt = chunks[0]["prompt_token_ids"]
        assert chunks[-1]["usage"] == {"prompt_tokens": 2, "completion_tokens": 2}
    else:
        choice = response.json()["choices"][0]
        ids, tokens = choice["token_ids"], choice["logprobs"]["content"]
        prompt = response.json()["prompt_token_ids"]
    assert (prompt, ids) == ([1000, 1001], [3, 14])
    assert [each["logprob"] for each in tokens] == [logprob(3), logprob(14)]


def test_several_choices_are_lists_of_lists(stage: Any) -> None:
    stage.ask("w3 w14", key=stage.key(allow=(Allow.CHOICES,)), n=2, temperature=1)
    (span,) = stage.spans()
    attributes = span["attributes"]
    assert attributes["gen_ai.request.choice.count"] == 2
    assert attributes["ltrain.response_token_ids"] == "[[3,14],[3,14]]"
    both = packed(logprob(3), logprob(14))
    assert json.loads(attributes["ltrain.response_logprobs"]) == [both, both]
    assert attributes["ltrain.response_token_count"] == 4


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("post", ["ask", "complete"])
def test_each_choice_keeps_its_own_tokens(stage: Any, post: str, stream: bool) -> None:
    key = stage.key(allow=(Allow.CHOICES,))
    answer = getattr(stage, post)("w3 w14 vary", key=key, n=3, temperature=1, stream=stream)
    assert answer.status_code == 200
    attributes = stage.spans()[0]["attributes"]
    assert attributes["ltrain.response_token_ids"] == "[[3,14],[4,15],[5,16]]"
    expected = [packed(logprob(3 + each), logprob(14 + each)) for each in range(3)]
    assert json.loads(attributes["ltrain.response_logprobs"]) == expected
    outputs = json.loads(attributes["gen_ai.output.messages"])
    texts = ["".join(part["content"] for part in each["parts"]) for each in outputs]
    assert [text.replace(" ", "") for text in texts] == ["w3w14", "w4w15", "w5w16"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"messages": [{"role": "user", "content": "w3"}], "max_tokens": 9}),
        ("/v1/responses", {"input": "w3"}),
    ],
)
def test_an_api_with_one_answer_takes_no_n(stage: Any, path: str, body: dict[str, Any]) -> None:
    refused = stage.post(path, {"model": "policy", "n": 2, **body}, identity=None)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("'n' is refused: ")
    assert stage.post(path, {"model": "policy", "n": 1, **body}, identity=None).status_code == 200


def test_sampling_is_imposed_and_the_requested_values_are_recorded(stage: Any, vllm: Any) -> None:
    key = stage.key(sampling={"temperature": 0.7})
    stage.ask("w3", key=key, temperature=0, top_p=0.9, top_k=None, seed=42, frequency_penalty=0)
    (sent,) = vllm.requests
    sampling = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
    assert [sent.get(name) for name in sampling] == [0.7, 1.0, 0, 0.0, 1.0, None]
    attributes = stage.spans()[0]["attributes"]
    assert {
        name: value for name, value in attributes.items() if name.startswith("ltrain.asked")
    } == {
        "ltrain.asked.temperature": 0,
        "ltrain.asked.top_p": 0.9,
        "ltrain.asked.seed": 42,
    }
    assert attributes["gen_ai.request.temperature"] == 0.7
    assert attributes["gen_ai.request.top_p"] == 1.0


def test_the_sampling_of_a_policy_replaces_the_one_for_all(stage: Any, vllm: Any) -> None:
    for policy in ("policy", "other"):
        own = {policy: {"temperature": 0.4}}
        stage.ask("w3", key=stage.key(sampling={"temperature": 0.7}, policy_sampling=own))
    assert [sent["temperature"] for sent in vllm.requests] == [0.4, 0.7]


def test_a_key_without_sampling_leaves_the_request_unchanged(stage: Any, vllm: Any) -> None:
    stage.ask("w3", temperature=0, seed=42)
    (sent,) = vllm.requests
    assert sent["temperature"] == 0 and sent["seed"] == 42 and "top_p" not in sent


def test_tools_and_tool_messages_are_in_the_span(stage: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
        {"role": "user", "content": "w3"},
    ]
    stage.ask("", messages=messages, tools=[{"type": "function", "function": {"name": "f"}}])
    attributes = stage.spans()[0]["attributes"]
    assert json.loads(attributes["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "hi"}]},
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "c1", "name": "f", "arguments": '{"a":1}'}],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "4"}]},
        {"role": "user", "parts": [{"type": "text", "content": "w3"}]},
    ]
    assert json.loads(attributes["gen_ai.tool.definitions"])[0]["function"]["name"] == "f"


def test_the_response_has_the_requested_model_name(stage: Any, load: Any) -> None:
    assert stage.ask("w3", model="gpt-5").json()["model"] == "gpt-5"
    events = load("stage").events(stage.ask("w3", model="gpt-5", stream=True))
    assert {event["model"] for event in events[:-1]} == {"gpt-5"}
    assert stage.spans()[0]["name"] == "chat gpt-5"


def test_production_needs_no_key_and_has_no_identity(stage: Any) -> None:
    headers = {**TRACE, "baggage": "ltrain.rollout.id=forged,ltrain.mode=train"}
    assert stage.ask("w3", identity=None, headers=headers).status_code == 200
    attributes = stage.spans()[0]["attributes"]
    assert attributes["ltrain.mode"] == "prod" and "ltrain.rollout.id" not in attributes


def test_the_key_overrides_baggage(stage: Any) -> None:
    stage.ask("w3", headers={"baggage": "ltrain.rollout.id=forged,ltrain.wave=9"})
    attributes = stage.spans()[0]["attributes"]
    assert (attributes["ltrain.rollout.id"], attributes["ltrain.wave"]) == ("abc", 2)
