"""Failures of calls, and how the gateway reports them."""

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.fake_vllm import FakeVllm

from ltrain_train.gateway.attempts import AttemptCalls


def message(response: httpx.Response) -> str:
    return str(response.json()["error"]["message"])


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"messages": [{"role": "user"}]}', "no 'model'"),
        (b'{"model": "m", "messages": "hi"}', "'messages' of the request cannot be 'hi'"),
    ],
)
def test_an_invalid_body_is_refused(stage: Any, body: bytes, sentence: str) -> None:
    response = stage.http.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    assert sentence in message(response)


def test_a_refusal_of_vllm_is_forwarded_as_the_agents_error(stage: Any) -> None:
    response = stage.ask("wrong")
    assert (response.status_code, message(response)) == (400, "a wrong request")
    (span,) = stage.spans()
    assert span["status"] == (2, "a wrong request")
    assert span["attributes"]["error.type"] == "400"
    assert span["attributes"]["ltrain.delivered"] is False
    counts = stage.client.close_attempt(stage.identity, stage.key())
    assert (counts.llm_calls, counts.spans, counts.failures) == (0, 1, 0)


def test_the_refusal_of_a_too_long_request_names_the_setting(stage: Any) -> None:
    response = stage.ask("long")
    assert response.status_code == 400
    assert message(response).startswith("This model's maximum context length is 4096 tokens.")
    assert "serve.max_model_len in the recipe (`ltrain serve --max-model-len`)" in message(response)
    (span,) = stage.spans()
    assert span["status"] == (2, message(response))


def test_an_unhealthy_policy_server_is_an_outage(stage: Any, vllm: Any) -> None:
    vllm.sick = True
    response = stage.ask("w3")
    assert (response.status_code, "is down" in message(response)) == (503, True)
    counts = stage.client.close_attempt(stage.identity, stage.key())
    assert (counts.llm_calls, counts.spans, counts.failures) == (0, 1, 1)


def test_an_unreachable_policy_server_is_reported(stage_without_vllm: Any) -> None:
    response = stage_without_vllm.ask("w3")
    assert response.status_code == 503
    assert "policy server is down" in message(response)
    (span,) = stage_without_vllm.spans()
    assert span["status"][0] == 2
    assert span["attributes"]["error.type"] == "upstream"


def test_a_stream_that_breaks_ends_in_an_error(stage: Any, load: Any) -> None:
    response = stage.ask("w3 w4 vanish", stream=True)
    lines = [line for line in response.text.split("\n\n") if line]
    assert "policy server fails on this request" in lines[-1]
    (span,) = stage.spans()
    assert span["status"][0] == 2
    assert stage.client.close_attempt(stage.identity, stage.key()).failures == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_disconnected_client_aborts_the_generation(stage: Any, vllm: Any, stream: bool) -> None:
    words = ["slow" if stream else "stuck", *(f"w{number}" for number in range(3, 40))]
    with pytest.raises(httpx.ReadTimeout):
        stage.http.post(
            "/v1/chat/completions",
            json={
                "model": "policy",
                "stream": stream,
                "messages": [{"role": "user", "content": " ".join(words)}],
            },
            timeout=0.5,
        )
    (span,) = stage.wait_spans(1)
    assert span["status"] == (2, "the client went away")
    assert span["attributes"]["ltrain.delivered"] is False
    assert vllm.aborted.wait(10)


def test_a_redirect_of_the_policy_server_is_not_followed(stage: Any, vllm: Any) -> None:
    with FakeVllm() as other:
        vllm.redirect = other.url
        response = stage.ask("w1")
    assert other.requests == []
    assert response.status_code == 307
    assert "location" not in response.headers


def test_closing_an_attempt_cancels_its_calls_and_revokes_its_key(stage: Any) -> None:
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(stage.ask("slow w3")))
    assert stage.ask("w3").status_code == 200
    thread.start()
    time.sleep(0.3)
    counts = stage.client.close_attempt(stage.identity, stage.key())
    assert (counts.llm_calls, counts.spans, counts.failures) == (1, 2, 0)
    thread.join()
    assert [answer.status_code for answer in answers] == [403]
    after = stage.ask("w3")
    assert after.status_code == 403
    assert "is closed" in message(after)
    assert stage.client.close_attempt(stage.identity, stage.key()) == counts
    first, cut, process = stage.spans()
    assert cut["status"] == (2, "the attempt was closed")
    assert process["name"] == "ltrain.process"
    assert process["trace"] == first["trace"] or not process["parent"]
    assert process["attributes"]["ltrain.rollout.spans"] == 2
    assert process["attributes"]["ltrain.rollout.llm_calls"] == 1
    assert process["attributes"]["ltrain.rollout.id"] == "abc"


def test_a_request_whose_body_ends_after_the_close_reaches_no_model(stage: Any, vllm: Any) -> None:
    came, closed = threading.Event(), threading.Event()

    def body() -> Iterator[bytes]:
        yield b'{"model": "policy", '
        came.set()
        closed.wait(10)
        yield b'"messages": [{"role": "user", "content": "w3"}]}'

    answers: list[httpx.Response] = []
    path = f"/rollout/{stage.identity.rollout}/attempt/{stage.identity.attempt}/v1/chat/completions"
    headers = {"authorization": f"Bearer {stage.key()}", "content-type": "application/json"}
    late = threading.Thread(
        target=lambda: answers.append(stage.http.post(path, content=body(), headers=headers))
    )
    late.start()
    came.wait(10)
    time.sleep(0.3)  # the gateway has its head
    stage.client.close_attempt(stage.identity, stage.key())
    closed.set()
    late.join()
    assert [answer.status_code for answer in answers] == [403]
    assert "is closed" in message(answers[0])
    assert vllm.requests == []


def test_the_attempts_own_span_is_in_the_trace_of_its_calls(stage: Any) -> None:
    stage.ask("w3", headers={"traceparent": f"00-{'c' * 32}-{'d' * 16}-01"})
    stage.client.close_attempt(stage.identity, stage.key())
    assert {span["trace"] for span in stage.spans()} == {"c" * 32}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/collective_rpc"),
        ("POST", "/pause"),
        ("POST", "/update_weights"),
        ("POST", "/v1/load_lora_adapter"),
        ("GET", "/metrics"),
        ("POST", "/rollout/abc/attempt/1/collective_rpc"),
        ("POST", "/rollout/abc/attempt/1/v1/../../../../collective_rpc"),
        ("POST", "/v1/chat/completions/../../../collective_rpc"),
        ("GET", "/v1/chat/completions"),
    ],
)
def test_other_paths_are_refused(stage: Any, vllm: Any, method: str, path: str) -> None:
    response = stage.http.request(method, path, json={"method": "shutdown"})
    assert response.status_code == 404
    assert "The gateway has no" in message(response)
    assert vllm.admin == []


def test_an_unknown_model_is_refused_in_production(stage: Any) -> None:
    response = stage.ask("w3", identity=None, model="gpt-5")
    assert response.status_code == 404
    assert message(response) == "This gateway has no model 'gpt-5'. Choose from: policy."


def test_production_calls_leave_nothing_in_memory(stage: Any, vllm: Any) -> None:
    def live_objects() -> int:
        gc.collect()
        attempts = [each for each in gc.get_objects() if type(each) is AttemptCalls]
        return sum(len(each.unanswered) for each in attempts)

    before = live_objects()  # of other tests
    vllm.sick = True
    for word in ("w1", "w2"):
        assert stage.ask(word, identity=None).status_code == 503
    assert live_objects() <= before


def test_models_and_health(stage: Any) -> None:
    assert [each["id"] for each in stage.http.get("/v1/models").json()["data"]] == ["policy"]
    health = stage.http.get("/health").json()
    assert set(health.pop("blocked").values()) == {0}
    assert health == {
        "status": "ready",
        "reason": "",
        "policy": "policy",
        "recording": "ok",
        "version": 0,
        "policies": {"policy": 0},
        "max_model_len": None,
        "in_flight": 0,
    }
    assert stage.client.is_running()
