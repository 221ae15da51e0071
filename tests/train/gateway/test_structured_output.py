"""Structured output of every API is marked on the span with the grammar that the server applies."""

import json
from typing import Any

import pytest

from ltrain_instrument.allow import Allow
from ltrain_instrument.tokens.request import FAVOURS, GRAMMARS
from ltrain_train.gateway.apis.request_fields import SERVER_FIELDS

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
USER: list[dict[str, Any]] = [{"role": "user", "content": "w3"}]
OPENAI_TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
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
CHAT = ROUTES["/v1/chat/completions"]
CASES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"response_format": CHAT_FORMAT}),
    ("/v1/chat/completions", {"response_format": {"type": "json_object"}}),
    ("/v1/chat/completions", REQUIRED),
    ("/v1/chat/completions", {"tools": [OPENAI_TOOL], "tool_choice": FUNCTION}),
    ("/v1/chat/completions", {"structured_outputs": {"json": SCHEMA}}),
    ("/v1/completions", {"response_format": CHAT_FORMAT}),
    ("/v1/responses", {"text": {"format": {**FORMAT, "name": "answer", "strict": True}}}),
    ("/v1/responses", {"tools": [RESPONSES_TOOL], "tool_choice": "required"}),
    ("/v1/messages", {"output_config": {"format": FORMAT}}),
    ("/v1/messages", {"output_format": FORMAT}),
    ("/v1/messages", {"tools": [MESSAGES_TOOL], "tool_choice": {"type": "any"}}),
    ("/v1/messages", {"tools": [MESSAGES_TOOL], "tool_choice": {"type": "tool", "name": "f"}}),
]
STRICT_TOOL = {**OPENAI_TOOL, "function": {**OPENAI_TOOL["function"], "strict": True}}
UNASKED: tuple[str, dict[str, Any]] = ("/v1/chat/completions", {"tools": [STRICT_TOOL]})
"""vLLM constrains it, although the agent asks for no format."""
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"guided_json": SCHEMA}),
    ("/v1/chat/completions", {"logit_bias": {"3": 1.0}}),
    ("/v1/completions", {"guided_regex": "a+"}),
]
"""Fields whose effect on the sampling the learner cannot apply."""
FREE: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"response_format": {"type": "text"}}),
    ("/v1/chat/completions", {"tools": [OPENAI_TOOL], "tool_choice": "auto"}),
    ("/v1/responses", {"text": {"format": {"type": "text"}}}),
    ("/v1/messages", {"output_config": {"effort": "low"}}),
    ("/v1/messages", {"tools": [MESSAGES_TOOL], "tool_choice": {"type": "auto"}}),
]


@pytest.mark.parametrize(("path", "fields"), [*CASES, UNASKED])
def test_the_grammar_of_a_call_is_recorded(stage: Any, path: str, fields: dict[str, Any]) -> None:
    answer = stage.post(path, {"model": "policy", **ROUTES[path], **fields})
    assert answer.status_code == 200
    (span,) = stage.spans()
    assert span["attributes"]["ltrain.constrained"] is True
    schema = {"type": "object"} if "json_object" in str(fields) else SCHEMA
    constraint = json.loads(span["attributes"]["ltrain.constraint"])
    assert json.loads(constraint.pop("spec")) == schema
    assert constraint == {"kind": "json", "server": "0.32.0"}


@pytest.mark.parametrize(("path", "fields"), [*CASES, UNASKED])
def test_a_recipe_may_refuse_grammars(stage: Any, path: str, fields: dict[str, Any]) -> None:
    body = {"model": "policy", **ROUTES[path], **fields}
    refused = stage.post(path, body, key=stage.key(constrained="refused"))
    assert refused.status_code == 400
    assert 'allow = ["constrained"]' in refused.json()["error"]["message"]
    key = stage.key(constrained="refused", allow=(Allow.CONSTRAINED,))
    assert stage.post(path, body, key=key).status_code == 200


@pytest.mark.parametrize(("path", "fields"), OTHERS)
def test_other_influence_on_the_sampling_is_marked_and_must_be_allowed(
    stage: Any, path: str, fields: dict[str, Any]
) -> None:
    body = {"model": "policy", **ROUTES[path], **fields}
    refused = stage.post(path, body)
    assert refused.status_code == 400
    assert 'allow = ["constrained"]' in refused.json()["error"]["message"]
    assert stage.post(path, body, key=stage.key(allow=(Allow.CONSTRAINED,))).status_code == 200
    (span,) = stage.spans()
    assert span["attributes"]["ltrain.constrained"] is True
    assert "ltrain.constraint" not in span["attributes"]


def test_a_favoured_call_has_no_grammar_to_replay(stage: Any) -> None:
    body = {"model": "policy", **CHAT, "response_format": CHAT_FORMAT, "logit_bias": {"3": 1.0}}
    key = stage.key(allow=(Allow.CONSTRAINED,))
    assert stage.post("/v1/chat/completions", body, key=key).status_code == 200
    assert "ltrain.constraint" not in stage.spans()[0]["attributes"]


def test_equal_tools_are_rendered_once(stage: Any, vllm: Any) -> None:
    for content in ("w3", "w4", "w5"):
        assert stage.ask(content, tools=[OPENAI_TOOL]).status_code == 200
    assert stage.ask("w3").status_code == 200
    assert len(vllm.rendered) == 1
    assert "stream" not in vllm.rendered[0]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((403, {}), "the policy server does not report its grammar"),
        (
            (200, {"sampling_params": {"structured_outputs": {"regex": "a" * (1 << 21)}}}),
            "its grammar has more than 1048576 characters",
        ),
    ],
)
def test_a_call_whose_grammar_cannot_be_replayed_is_refused_in_training(
    stage: Any, vllm: Any, answer: Any, reason: str
) -> None:
    vllm.render = lambda body: answer
    fields = {"response_format": CHAT_FORMAT}
    refused = stage.ask("w3", **fields)
    assert refused.status_code == 400
    assert reason in refused.json()["error"]["message"]
    assert stage.ask("w3", identity=None, **fields).status_code == 200
    refused_span, answered = stage.spans()
    assert refused_span["attributes"]["error.type"] == "400"
    assert answered["attributes"]["ltrain.constrained"] is True
    assert "ltrain.constraint" not in answered["attributes"]


def test_plain_tools_need_no_render_route(stage: Any, vllm: Any) -> None:
    vllm.render = lambda body: (404, {})
    assert stage.ask("w3", tools=[OPENAI_TOOL]).status_code == 200
    assert "ltrain.constrained" not in stage.spans()[0]["attributes"]


def test_a_request_that_the_server_refuses_gets_the_servers_error(stage: Any, vllm: Any) -> None:
    vllm.render = lambda body: (400, {"error": {"message": "a wrong request", "code": 400}})
    refused = stage.ask("w3", response_format=CHAT_FORMAT)
    assert refused.status_code == 400
    assert "a wrong request" in refused.text
    assert vllm.requests == []
    assert stage.spans()[0]["attributes"]["error.type"] == "400"


THINKS: dict[str, Any] = {
    "sampling_params": {"structured_outputs": {"json": SCHEMA}},
    "reasoning_parser_kwargs": {"chat_template_kwargs": {}},
    "reasoning_ended": False,
}
"""The sampling of a chat whose prompt leaves the reasoning open."""


@pytest.mark.parametrize(
    ("settings", "ended", "end"),
    [
        ({"reasoning_parser": "deepseek_r1"}, False, {"reasoning_end": "</think>"}),
        (
            {"reasoning_parser": "qwen3"},
            False,
            {"reasoning_end": "</think>", "tool_start": "<tool_call>"},
        ),
        ({"reasoning_parser": "qwen3"}, True, {}),
        ({"reasoning_parser": "qwen3", "enable_in_reasoning": True}, False, {}),
    ],
)
def test_where_a_constraint_begins_is_recorded(
    stage: Any, vllm: Any, settings: Any, ended: bool, end: dict[str, str]
) -> None:
    vllm.structured_outputs = settings
    vllm.render = lambda body: (200, {**THINKS, "reasoning_ended": ended})
    assert stage.ask("w3", response_format=CHAT_FORMAT).status_code == 200
    (span,) = stage.spans()
    constraint = json.loads(span["attributes"]["ltrain.constraint"])
    assert constraint == {"kind": "json", "spec": constraint["spec"], "server": "0.32.0", **end}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"reasoning_parser": "granite"}, "reasoning parser 'granite' does not find the end of it"),
        (
            {"reasoning_parser": "qwen3", "reasoning_parser_plugin": "own.py"},
            "reasoning parser 'qwen3' does not find the end of it",
        ),
        (None, "the server does not report its reasoning parser"),
    ],
)
def test_a_constraint_whose_beginning_is_unknown_is_refused_in_training(
    stage: Any, vllm: Any, settings: Any, reason: str
) -> None:
    vllm.structured_outputs = settings
    vllm.render = lambda body: (200, THINKS)
    refused = stage.ask("w3", response_format=CHAT_FORMAT)
    assert refused.status_code == 400
    assert reason in refused.json()["error"]["message"]


def test_a_constrained_completion_of_a_server_with_a_reasoning_parser_is_refused_in_training(
    stage: Any, vllm: Any
) -> None:
    vllm.structured_outputs = {"reasoning_parser": "qwen3"}
    refused = stage.complete("w3", response_format=CHAT_FORMAT)
    assert refused.status_code == 400
    assert "send a chat completion" in refused.json()["error"]["message"]
    assert stage.complete("w3").status_code == 200


def test_where_a_constraint_begins_after_reasoning_is_found_for_each_prompt(
    stage: Any, vllm: Any
) -> None:
    vllm.structured_outputs = {"reasoning_parser": "qwen3"}
    for ended in (True, False):
        vllm.render = lambda body, ended=ended: (200, {**THINKS, "reasoning_ended": ended})
        assert stage.ask("w3", response_format=CHAT_FORMAT).status_code == 200
    assert len(vllm.rendered) == 2
    constraints = [span["attributes"]["ltrain.constraint"] for span in stage.spans()]
    assert ["reasoning_end" in constraint for constraint in constraints] == [False, True]


RELAXED: list[tuple[dict[str, Any], str]] = [
    ({"response_format": CHAT_FORMAT}, "It must match this JSON schema:"),
    ({"response_format": {"type": "json_object"}}, "Answer with one JSON object only"),
    ({"structured_outputs": {"regex": "a+"}}, "matches this regular expression:\na+"),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, "exactly one of these texts"),
    (REQUIRED, "calling at least one of the functions."),
    ({"tools": [OPENAI_TOOL], "tool_choice": FUNCTION}, "calling the function `f`."),
    (
        {"tools": [OPENAI_TOOL], "parallel_tool_calls": False},
        "Call at most one function in an answer.",
    ),
]


@pytest.mark.parametrize("mode", ["train", "val"])
@pytest.mark.parametrize(("fields", "text"), RELAXED)
def test_a_relaxed_call_has_its_format_in_the_prompt(
    stage: Any, vllm: Any, fields: dict[str, Any], text: str, mode: Any
) -> None:
    identity = stage.identity_of(mode)
    key = stage.key(identity, constrained="relaxed")
    assert stage.ask("w3", identity=identity, key=key, **fields).status_code == 200
    (request,) = vllm.requests
    system, user = request["messages"]
    assert system["role"] == "system"
    assert text in system["content"]
    assert user["content"] == "w3"
    assert not {"response_format", "structured_outputs", "parallel_tool_calls"} & request.keys()
    assert request.get("tool_choice") in (None, "auto")
    (span,) = stage.spans()
    assert "ltrain.constrained" not in span["attributes"]
    assert any(name.startswith("ltrain.asked.") for name in span["attributes"])


def test_a_relaxed_call_keeps_its_system_message_and_loses_strict_tools(
    stage: Any, vllm: Any
) -> None:
    messages = [{"role": "system", "content": "Be brief."}, *USER]
    body: dict[str, Any] = {"model": "policy", "messages": messages, "tools": [STRICT_TOOL]}
    body["response_format"] = {"type": "json_object"}
    assert (
        stage.post("/v1/chat/completions", body, key=stage.key(constrained="relaxed")).status_code
        == 200
    )
    (request,) = vllm.requests
    assert request["messages"][0]["content"].startswith("Be brief.\n\nAnswer with one JSON")
    assert request["tools"] == [OPENAI_TOOL]


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
    assert {SERVER_FIELDS[name].allow for name in (*GRAMMARS, *FAVOURS)} == {Allow.CONSTRAINED}
