"""`/v1/messages/count_tokens` through Anthropic's client: the policy server counts."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

TOOL = {"name": "weather", "input_schema": {"type": "object", "properties": {}}}
USER = {"role": "user", "content": "go w3 w14"}


@pytest.fixture
def client(stage: Any) -> Iterator[Any]:
    identity = stage.identity
    base = f"{stage.url}/rollout/{identity.rollout}/attempt/{identity.attempt}"
    with Anthropic(base_url=base, api_key=stage.key(), max_retries=0) as client:
        yield client


def count(client: Any, **fields: Any) -> Any:
    return client.messages.count_tokens(**{"model": "claude", "messages": [USER], **fields})


def test_the_policy_server_counts_the_rendered_prompt(client: Any, stage: Any, vllm: Any) -> None:
    counted = count(client, system="be brief", tools=[TOOL], thinking={"type": "disabled"})
    assert counted.input_tokens == 5
    function = {"name": "weather", "parameters": TOOL["input_schema"]}
    assert vllm.tokenized == [
        {
            "model": "policy",
            "messages": [{"role": "system", "content": "be brief"}, USER],
            "tools": [{"type": "function", "function": function}],
        }
    ]
    assert stage.spans() == []
    assert stage.client.close_attempt(stage.identity, stage.key()).llm_calls == 0
    with pytest.raises(anthropic.PermissionDeniedError, match="is closed"):
        count(client)


def test_a_prompt_that_the_server_cannot_render_is_its_own_error(client: Any) -> None:
    with pytest.raises(anthropic.BadRequestError, match="a wrong request") as raised:
        count(client, messages=[{"role": "user", "content": "wrong"}])
    assert raised.value.body == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "a wrong request"},
    }


@pytest.mark.parametrize("garbage", ["<html>", "[]", "{}", '{"count": "7"}'])
def test_a_server_that_does_not_count_is_named(client: Any, vllm: Any, garbage: str) -> None:
    vllm.garbage = garbage
    with pytest.raises(anthropic.APIStatusError, match="does not count tokens") as raised:
        count(client)
    assert raised.value.status_code == 502


def test_production_counts_for_the_policy_alone(stage: Any) -> None:
    sent = {"model": "policy", "messages": [USER]}
    path = "/v1/messages/count_tokens"
    assert stage.post(path, sent, identity=None).json() == {"input_tokens": 3}
    unknown = stage.post(path, {**sent, "model": "gpt-5"}, identity=None)
    assert unknown.status_code == 404
    assert unknown.json()["error"] == {
        "type": "not_found_error",
        "message": "This gateway has no model 'gpt-5'. Choose from: policy.",
    }
