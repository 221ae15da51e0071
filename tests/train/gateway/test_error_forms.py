"""Errors of each route, in the form that the route's clients read."""

from typing import Any

import httpx
import pytest

USER = [{"role": "user", "content": "w3"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "w3"},
    "/v1/responses": {"input": "w3"},
    "/v1/messages": {"messages": USER, "max_tokens": 9},
}


def post(stage: Any, path: str, content: str = "w3", **fields: Any) -> httpx.Response:
    body: dict[str, Any] = {"model": "policy", **ROUTES[path]}
    if "messages" in body:
        body["messages"] = [{"role": "user", "content": content}]
    else:
        body["input" if "input" in body else "prompt"] = content
    answer: httpx.Response = stage.post(path, body, **fields)
    return answer


def error(path: str, answer: httpx.Response) -> tuple[str, str]:
    """Return type and message of an error after checking its form."""
    body = answer.json()
    if path == "/v1/messages":
        assert body.keys() == {"type", "error"}
        assert body["type"] == "error"
        assert body["error"].keys() == {"type", "message"}
    else:
        assert body.keys() == {"error"}
        assert body["error"].keys() >= {"message"}
    return body["error"].get("type"), body["error"]["message"]


@pytest.mark.parametrize("path", ROUTES)
def test_a_prompt_beyond_the_context_is_an_error_of_the_agent(stage: Any, path: str) -> None:
    answer = post(stage, path, "long")
    assert answer.status_code == 400
    kind, message = error(path, answer)
    assert message.startswith("This model's maximum context length is 4096 tokens.")
    assert kind == ("invalid_request_error" if path == "/v1/messages" else None)
    counts = stage.client.close_attempt(stage.identity, stage.key())
    assert counts.failures == 0  # what makes an attempt infra


@pytest.mark.parametrize("path", ROUTES)
def test_an_unknown_model_lists_the_known_ones(stage: Any, path: str) -> None:
    body = {**ROUTES[path], "model": "gpt-6"}
    answer = stage.post(path, body, identity=None)
    assert answer.status_code == 404
    kind, message = error(path, answer)
    assert message == "This gateway has no model 'gpt-6'. Choose from: policy."
    assert kind == "not_found_error"


@pytest.mark.parametrize("path", ROUTES)
def test_a_bad_key_is_refused(stage: Any, path: str) -> None:
    answer = post(stage, path, key="no.key")
    assert answer.status_code == 401
    kind, message = error(path, answer)
    assert "key" in message
    assert kind == ("authentication_error" if path == "/v1/messages" else "unauthorized_error")


@pytest.mark.parametrize(
    "garbage",
    [
        "<html>",
        "[]",
        '{"choices": [5]}',
        '{"choices": [{"token_ids": [1], "logprobs": {"content": [{"logprob": "x"}]}}]}',
        '{"prompt_token_ids": 5, "choices": []}',
    ],
)
@pytest.mark.parametrize("path", ROUTES)
def test_garbage_of_the_server_is_an_error_with_a_span(
    stage: Any, vllm: Any, path: str, garbage: str
) -> None:
    vllm.garbage = garbage
    answer = post(stage, path)
    assert answer.status_code == 400
    assert "fails on this request (ValueError" in error(path, answer)[1]
    (span,) = stage.spans()
    assert span["status"][0] == 2
    assert "ltrain.response_token_ids" not in span["attributes"]
    assert post(stage, path).status_code == 400  # the gateway still answers
