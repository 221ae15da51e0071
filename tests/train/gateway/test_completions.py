"""`/v1/completions` through the gateway: the bytes for the agent, and the span."""

import json
from typing import Any

import httpx
import pytest

from ltrain_instrument.allow import Allow


@pytest.mark.parametrize("stream", [False, True])
def test_the_agent_gets_the_bytes_that_vllm_sends(stage: Any, vllm: Any, stream: bool) -> None:
    body = {"model": "policy", "prompt": "go w3 w14", "stream": stream}
    direct = httpx.post(f"{vllm.url}/v1/completions", json=body)
    assert stage.complete("go w3 w14", stream=stream).content == direct.content


@pytest.mark.parametrize("stream", [False, True])
def test_the_span_has_the_tokens(stage: Any, vllm: Any, stream: bool) -> None:
    assert stage.complete("go w3 w14", stream=stream, max_tokens=9).status_code == 200
    (sent,) = vllm.requests
    assert (sent["logprobs"], sent["return_token_ids"]) == (0, True)
    (span,) = stage.spans()
    attributes = span["attributes"]
    assert span["name"] == "text_completion policy"
    assert attributes["gen_ai.operation.name"] == "text_completion"
    assert attributes["ltrain.prompt_token_ids"] == "[1000,1001,1002]"
    assert attributes["ltrain.response_token_ids"] == "[3,14]"
    assert attributes["ltrain.response_token_count"] == 2
    assert attributes["ltrain.policy.version"] == 0
    (message,) = json.loads(attributes["gen_ai.input.messages"])
    assert message == {"role": "user", "parts": [{"type": "text", "content": "go w3 w14"}]}


def test_a_prompt_of_token_ids_has_no_text(stage: Any, vllm: Any) -> None:
    assert stage.complete([3, 14]).status_code == 200
    assert vllm.requests[0]["prompt"] == [3, 14]
    assert "gen_ai.input.messages" not in stage.spans()[0]["attributes"]


def test_the_client_gets_the_fields_that_it_requests(stage: Any) -> None:
    choice = stage.complete("w3 w14", logprobs=0, return_token_ids=True).json()["choices"][0]
    assert choice["token_ids"] == [3, 14]
    assert len(choice["logprobs"]["token_logprobs"]) == 2


def test_sampling_is_imposed(stage: Any, vllm: Any) -> None:
    stage.complete("w3", key=stage.key(sampling={"temperature": 0.7}), temperature=0, seed=1)
    (sent,) = vllm.requests
    assert (sent["temperature"], sent.get("seed")) == (0.7, None)
    assert stage.spans()[0]["attributes"]["ltrain.asked.temperature"] == 0


@pytest.mark.parametrize(
    ("field", "needed"),
    [
        ({"n": 2}, Allow.CHOICES),
        ({"best_of": 2}, Allow.CONSTRAINED),
        ({"suffix": "end"}, Allow.TEMPLATE),
        ({"prompt_embeds": "AAAA"}, Allow.MULTIMODAL),
    ],
)
def test_a_call_that_cannot_be_trained_is_refused(
    stage: Any, field: dict[str, Any], needed: Allow
) -> None:
    refused = stage.complete("w3", **field)
    assert refused.status_code == 400
    assert f'allow = ["{needed.value}"]' in refused.json()["error"]["message"]
    assert stage.complete("w3", key=stage.key(allow=(needed,)), **field).status_code == 200


@pytest.mark.parametrize("prompt", [["one", "two"], [[3], [14]], [], [-1], [True], None, 7])
def test_what_is_not_one_prompt_is_refused(stage: Any, vllm: Any, prompt: Any) -> None:
    refused = stage.complete(prompt)
    assert refused.status_code == 400
    sentence = refused.json()["error"]["message"]
    assert sentence.startswith("'prompt' of the request cannot be")
    assert sentence.endswith("the gateway takes one prompt in a request, a text or token ids.")
    assert vllm.requests == []


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ({"logprobs": True}, "Send a value that OpenAI's completions API allows."),
        ({"logprobs": -2}, "Send a value that OpenAI's completions API allows."),
    ],
)
def test_a_bad_field_is_named(stage: Any, field: dict[str, Any], says: str) -> None:
    refused = stage.complete("w3", **field)
    assert refused.status_code == 400
    (name,) = field
    sentence = refused.json()["error"]["message"]
    assert sentence.startswith(f"'{name}' of the request cannot be") and sentence.endswith(says)


@pytest.mark.parametrize("identity", ["train", "val", None])
def test_the_echo_of_a_prompt_is_refused_in_every_mode(stage: Any, identity: Any) -> None:
    mode = stage.identity_of(identity) if identity else None
    refused = stage.complete("w3", identity=mode, echo=True)
    assert refused.status_code == 400
    sentence = "'echo' is refused: the gateway returns the sampled text only."
    assert refused.json()["error"]["message"] == sentence
    assert stage.complete("w3", identity=mode, echo=False).status_code == 200


def test_production_is_answered(stage: Any) -> None:
    assert stage.complete("w3", identity=None).status_code == 200
    unknown = stage.complete("w3", identity=None, model="other")
    assert unknown.status_code == 404
    assert stage.spans()[0]["attributes"]["ltrain.mode"] == "prod"
