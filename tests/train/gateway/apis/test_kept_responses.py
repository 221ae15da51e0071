"""`previous_response_id` through OpenAI's own client: `serve.responses_state`."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import openai
import pytest
from openai import OpenAI
from tests.fake_vllm import REASONING
from tests.train.gateway.test_continuation import ANSWER, template

from ltrain_instrument.allow import Allow
from ltrain_instrument.identity import Identity
from ltrain_train.gateway.kept_responses.store import RESPONSE_BYTES, KeptResponse, KeptResponses

TOOL: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
OTHER = Identity(run="demo", task="t1", wave=2, sample=1, rollout="def", attempt=1, mode="train")


@pytest.fixture
def stage(prepared_stage: Any) -> Iterator[Any]:
    prepared_stage.keeps_responses = True
    with prepared_stage.running() as stage:
        yield stage


@pytest.fixture
def client(stage: Any) -> Iterator[OpenAI]:
    with closing(client_of(stage, stage.identity)) as client:
        yield client


def client_of(stage: Any, identity: Identity) -> OpenAI:
    base = f"{stage.url}/rollout/{identity.rollout}/attempt/{identity.attempt}/v1"
    key = stage.key(identity, allow=tuple(Allow))
    return OpenAI(base_url=base, api_key=key, max_retries=0)


def create(client: OpenAI, content: Any, **more: Any) -> Any:
    return client.responses.create(model="policy", input=content, **more)


def streamed(client: OpenAI, content: Any, **more: Any) -> Any:
    with client.responses.stream(model="policy", input=content, **more) as stream:
        stream.until_done()
        return stream.get_final_response()


@pytest.mark.parametrize("send", [create, streamed])
def test_a_request_continues_a_response(client: OpenAI, stage: Any, vllm: Any, send: Any) -> None:
    first = send(client, "think w1", instructions="be brief")
    second = send(client, "w2", previous_response_id=first.id)
    third = send(client, [{"role": "user", "content": "w3"}], previous_response_id=second.id)
    assert (first.previous_response_id, first.store) == (None, True)
    assert third.previous_response_id == second.id
    assert [each["role"] for each in vllm.requests[0]["messages"]] == ["system", "user"]
    messages = vllm.requests[2]["messages"]
    assert [(each["role"], each["content"].strip()) for each in messages] == [
        ("user", "think w1"),
        ("assistant", "w1"),
        ("user", "w2"),
        ("assistant", "w2"),
        ("user", "w3"),
    ]
    assert messages[1]["reasoning"] == REASONING
    spans = stage.spans()
    assert len({span["trace"] for span in spans}) == 1 and len(spans) == 3
    branch = send(client, "w4", previous_response_id=first.id)
    assert len(vllm.requests[3]["messages"]) == 3 and branch.output_text.strip() == "w4"


def test_the_results_of_tools_continue_a_response(client: OpenAI, stage: Any, vllm: Any) -> None:
    first = create(client, "call w1", tools=[TOOL])
    calls = [each for each in first.output if each.type == "function_call"]
    results: Any = [
        {"type": "function_call_output", "call_id": each.call_id, "output": "sunny"}
        for each in calls
    ]
    create(client, results, tools=[TOOL], previous_response_id=first.id)
    user, answer, *outputs = vllm.requests[1]["messages"]
    assert user["content"] == "call w1" and len(outputs) == 2
    assert [call["id"] for call in answer["tool_calls"]] == [each.call_id for each in calls]
    names = [span["name"] for span in stage.spans()]
    assert names == ["chat policy", *["execute_tool weather"] * 2, "chat policy"]


def test_an_unknown_response_is_refused_as_openai_refuses_it(client: OpenAI, stage: Any) -> None:
    kept = create(client, "w1")
    unkept = create(client, "w2", store=False, previous_response_id=kept.id)
    assert unkept.store is False
    with closing(client_of(stage, OTHER)) as other:
        for asking, id in ((client, unkept.id), (client, "resp_x"), (other, kept.id)):
            with pytest.raises(openai.BadRequestError, match=f"'{id}' not found") as caught:
                create(asking, "w3", previous_response_id=id)
            assert caught.value.code == "previous_response_not_found"
            assert caught.value.param == "previous_response_id"
            assert caught.value.type == "invalid_request_error"


def test_keys_of_production_do_not_share_responses(stage: Any) -> None:
    identity = stage.identity
    with closing(client_of(stage, identity)) as attempt:
        kept = create(attempt, "w1")
    for key in (f"{identity.rollout}.{identity.attempt}", "a"):
        with (
            OpenAI(base_url=f"{stage.url}/v1", api_key=key, max_retries=0) as client,
            pytest.raises(openai.BadRequestError),
        ):
            create(client, "w1", previous_response_id=kept.id)


def test_a_response_is_retrieved_and_deleted(client: OpenAI) -> None:
    first = create(client, "w1", metadata={"a": "b"})
    second = create(client, "w2", previous_response_id=first.id)
    assert client.responses.retrieve(first.id) == first
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match="not found"):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError, match="not found"):
        create(client, "w3", previous_response_id=second.id)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"input": 1}, "'input' of the request cannot be 1"),
        ({}, "has no 'input'"),
        ({"input": [1]}, "'input' of the request cannot be"),
        ({"input": "w2", "previous_response_id": 1}, "'previous_response_id' is refused"),
    ],
)
def test_a_request_that_continues_a_response_is_checked(
    client: OpenAI, stage: Any, body: dict[str, Any], sentence: str
) -> None:
    first = create(client, "w1")
    sent = {"model": "policy", "previous_response_id": first.id, **body}
    response = stage.post("/v1/responses", sent)
    assert response.status_code == 400 and sentence in response.text


def test_a_kept_response_is_continued_by_its_token_ids(prepared_stage: Any, vllm: Any) -> None:
    vllm.template = template
    prepared_stage.keeps_responses = prepared_stage.continues = True
    with (
        prepared_stage.running() as stage,
        closing(client_of(stage, stage.identity)) as client,
    ):
        first = create(client, ANSWER)
        create(client, ANSWER, previous_response_id=first.id)
        before, after = (span["attributes"] for span in stage.wait_spans(2))
    known = [
        id
        for name in ("ltrain.prompt_token_ids", "ltrain.response_token_ids")
        for id in json.loads(before[name])
    ]
    assert after["ltrain.continued"] == len(known)
    assert json.loads(after["ltrain.prompt_token_ids"])[: len(known)] == known


def test_a_large_history_is_read_beside_the_event_loop(client: OpenAI, vllm: Any) -> None:
    first = create(client, "x" * 300_000 + " w1")
    second = create(client, "w2", previous_response_id=first.id)
    assert second.output_text == "w2"
    assert len(vllm.requests[1]["messages"]) == 3


def response(id: str, previous: KeptResponse | None = None, size: int = 1000) -> KeptResponse:
    return KeptResponse(("a", id), previous, 1, b"x" * size, b"", b"")


def test_the_response_that_is_unused_longest_is_forgotten_first() -> None:
    kept = KeptResponses(max_bytes=4 * (1000 + RESPONSE_BYTES))
    first = response("first")
    second = response("second", first)
    for each in (first, response("other"), second, response("third")):
        kept.add(each)
    assert kept.find(("a", "second")) is not None  # and so `first` is used
    kept.add(response("fourth"))
    kept.add(response("fifth"))
    found = [id for id in ("first", "second", "other", "third") if kept.find(("a", id))]
    assert found == ["first", "second"]


def test_an_unused_response_is_forgotten() -> None:
    kept = KeptResponses(idle=0.0)
    kept.add(response("first"))
    time.sleep(0.01)
    assert kept.find(("a", "first")) is None
