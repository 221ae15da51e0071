"""Structured output of every API is marked on the span; in mode `train` it must be allowed."""

from typing import Any

import pytest

from ltrain_instrument.allow import Allow
from ltrain_instrument.tokens.request import CONSTRAINTS
from ltrain_train.gateway.trainable_requests import REQUIRED_ALLOW

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
USER = [{"role": "user", "content": "w3"}]
OPENAI_TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
RESPONSES_TOOL = {"type": "function", "name": "f", "parameters": SCHEMA}
MESSAGES_TOOL = {"name": "f", "input_schema": SCHEMA}
CHAT_FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True},
}
FORMAT = {"type": "json_schema", "schema": SCHEMA}
REQUIRED = {"tools": [OPENAI_TOOL], "tool_choice": "required"}
FUNCTION = {"type": "function", "function": {"name": "f"}}
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "w3"},
    "/v1/responses": {"input": "w3"},
    "/v1/messages": {"messages": USER, "max_tokens": 9},
}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"response_format": CHAT_FORMAT}),
    ("/v1/chat/completions", {"response_format": {"type": "json_object"}}),
    ("/v1/chat/completions", REQUIRED),
    ("/v1/chat/completions", {"tools": [OPENAI_TOOL], "tool_choice": FUNCTION}),
    ("/v1/chat/completions", {"structured_outputs": {"json": SCHEMA}}),
    ("/v1/chat/completions", {"guided_json": SCHEMA}),
    ("/v1/chat/completions", {"logit_bias": {"3": 1.0}}),
    ("/v1/completions", {"guided_regex": "a+"}),
    ("/v1/completions", {"response_format": CHAT_FORMAT}),
    ("/v1/responses", {"text": {"format": {**FORMAT, "name": "answer", "strict": True}}}),
    ("/v1/responses", {"tools": [RESPONSES_TOOL], "tool_choice": "required"}),
    ("/v1/messages", {"output_config": {"format": FORMAT}}),
    ("/v1/messages", {"output_format": FORMAT}),
    ("/v1/messages", {"tools": [MESSAGES_TOOL], "tool_choice": {"type": "any"}}),
    ("/v1/messages", {"tools": [MESSAGES_TOOL], "tool_choice": {"type": "tool", "name": "f"}}),
]
FREE: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"response_format": {"type": "text"}}),
    ("/v1/chat/completions", {"tools": [OPENAI_TOOL], "tool_choice": "auto"}),
    ("/v1/responses", {"text": {"format": {"type": "text"}}}),
    ("/v1/messages", {"output_config": {"effort": "low"}}),
    ("/v1/messages", {"tools": [MESSAGES_TOOL], "tool_choice": {"type": "auto"}}),
]


@pytest.mark.parametrize(("path", "fields"), CASES)
def test_constrained_sampling_is_marked_and_must_be_allowed(
    stage: Any, path: str, fields: dict[str, Any]
) -> None:
    body = {"model": "policy", **ROUTES[path], **fields}
    refused = stage.post(path, body)
    assert refused.status_code == 400
    assert 'allow = ["constrained"]' in refused.json()["error"]["message"]
    assert stage.post(path, body, key=stage.key(allow=(Allow.CONSTRAINED,))).status_code == 200
    (span,) = stage.spans()
    assert span["attributes"]["ltrain.constrained"] is True


@pytest.mark.parametrize(("path", "fields"), FREE)
def test_free_sampling_is_not_marked(stage: Any, path: str, fields: dict[str, Any]) -> None:
    assert stage.post(path, {"model": "policy", **ROUTES[path], **fields}).status_code == 200
    assert "ltrain.constrained" not in stage.spans()[0]["attributes"]


def test_a_format_of_a_message_is_that_of_the_chat(stage: Any, vllm: Any) -> None:
    body = {"model": "policy", **ROUTES["/v1/messages"], "output_config": {"format": FORMAT}}
    assert stage.post("/v1/messages", body, identity=None).status_code == 200
    assert vllm.requests[0]["response_format"] == CHAT_FORMAT
    unknown = {**body, "output_config": {"format": {"type": "xml", "schema": {}}}}
    refused = stage.post("/v1/messages", unknown, identity=None)
    assert refused.status_code == 400
    assert "has the type 'xml'. Send one of type 'json_schema'." in refused.text


def test_every_marked_field_must_be_allowed() -> None:
    assert {REQUIRED_ALLOW[name] for name in CONSTRAINTS} == {Allow.CONSTRAINED}
