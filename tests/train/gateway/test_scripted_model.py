"""The scripted model answers the clients of each API, and tells what cannot be trained."""

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from ltrain_instrument.allow import Allow
from ltrain_train.gateway import ScriptedCall, ScriptedModel

CHAT: dict[str, Any] = {"model": "p", "messages": [{"role": "user", "content": "hello"}]}
CHAT_PATH = "/v1/chat/completions"


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel("a text") as served:
        yield served


@pytest.fixture
def client(model: ScriptedModel) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=model.url, api_key="any") as opened:
        yield opened


def test_openai_reads_a_chat_and_its_stream(client: Any, model: ScriptedModel) -> None:
    answer = client.chat.completions.create(**CHAT)
    assert answer.choices[0].message.content == "a text"
    chunks = list(
        client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True})
    )
    assert "".join(each.choices[0].delta.content for each in chunks if each.choices) == "a text"
    assert chunks[-1].usage is not None
    assert model.calls == [ScriptedCall(CHAT_PATH)] * 2


def test_openai_reads_a_response_and_its_stream(client: Any) -> None:
    assert client.responses.create(model="p", input="hello").output_text == "a text"
    events = list(client.responses.create(model="p", input="hello", stream=True))
    assert events[-1].type == "response.completed"


def test_openai_reads_a_completion(client: Any) -> None:
    answer = client.completions.create(model="p", prompt="hello", n=2)
    assert [each.text for each in answer.choices] == ["a text", "a text"]


def test_anthropic_reads_a_message_and_its_stream(model: ScriptedModel) -> None:
    client: Any
    with anthropic.Anthropic(base_url=model.url.removesuffix("/v1"), api_key="any") as client:
        request: dict[str, Any] = {"model": "p", "max_tokens": 5, "messages": CHAT["messages"]}
        assert client.messages.create(**request).content[0].text == "a text"
        with client.messages.stream(**request) as stream:
            assert "".join(stream.text_stream) == "a text"


def test_a_field_that_cannot_be_trained_is_recorded_unless_it_is_allowed(
    client: Any, model: ScriptedModel
) -> None:
    body: dict[str, Any] = {**CHAT, "n": 2, "logit_bias": {"5": 1}}
    client.chat.completions.create(**body)
    assert [each.split(" is refused")[0] for each in model.calls[0].faults] == [
        "'logit_bias'", "'n'",
    ]  # fmt: skip
    with ScriptedModel("", allow=[Allow.CONSTRAINED, Allow.CHOICES]) as other:
        httpx.post(f"{other.url}/chat/completions", json=body)
    assert other.calls == [ScriptedCall(CHAT_PATH)]


def test_an_unknown_path_and_a_bad_body_are_refused_and_recorded(model: ScriptedModel) -> None:
    assert httpx.post(f"{model.url}/embeddings", json={}).status_code == 404
    assert httpx.post(f"{model.url}/chat/completions", json={"model": 3}).status_code == 400
    assert [len(call.faults) for call in model.calls] == [1, 1]
    assert httpx.get(f"{model.url}/models").json()["data"][0]["id"] == "scripted"


def test_tools_are_recorded(client: Any, model: ScriptedModel) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    client.chat.completions.create(**CHAT, tools=[tool])
    assert model.calls == [ScriptedCall(CHAT_PATH, has_tools=True)]
