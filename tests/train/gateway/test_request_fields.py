"""Each field of OpenAI's and Anthropic's clients and of vLLM has the treatment that is declared."""

import json
import subprocess
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
from anthropic.types import message_create_params as message_params
from anthropic.types.beta import message_create_params as beta_message_params
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params as response_params

from ltrain_instrument.allow import Allow
from ltrain_train.gateway import (
    COMPLETION_RULES,
    MESSAGE_RULES,
    NO_EFFECT,
    RESPONSE_RULES,
    SERVER_RULES,
    FieldRule,
)
from ltrain_train.gateway.apis.request_fields import (
    NEUTRAL_SAMPLING,
    PARTS,
    SERVER_FIELDS,
    Treatment,
    rules_by_field,
)
from ltrain_train.gateway.apis.responses import EFFORTS
from ltrain_train.vllm_python import find_python

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
OWN: dict[str, dict[str, FieldRule]] = {
    CHAT: {},
    COMPLETIONS: rules_by_field(COMPLETION_RULES),
    RESPONSES: rules_by_field(RESPONSE_RULES),
    MESSAGES: rules_by_field(MESSAGE_RULES),
}
CLIENTS: dict[str, list[Any]] = {
    CHAT: [chat_params.CompletionCreateParamsStreaming],
    COMPLETIONS: [completion_params.CompletionCreateParamsStreaming],
    RESPONSES: [response_params.ResponseCreateParamsStreaming],
    MESSAGES: [
        message_params.MessageCreateParamsStreaming,
        beta_message_params.MessageCreateParamsStreaming,
    ],
}
LIST_FIELDS = """
import json
from typing import get_args
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
requests = {"/v1/chat/completions": ChatCompletionRequest, "/v1/completions": CompletionRequest}
defaults = {
    path: {
        name: field.get_default(call_default_factory=True)
        for name, field in request.model_fields.items()
    }
    for path, request in requests.items()
}
neutral = ChatCompletionRequest._DEFAULT_SAMPLING_PARAMS.default
efforts = get_args(ChatCompletionRequest.model_fields["reasoning_effort"].annotation)[0]
listed = {"defaults": defaults, "neutral": neutral, "efforts": get_args(efforts)}
print(json.dumps(listed, default=str))
"""
"""Prints the fields of vLLM's requests with their defaults."""
OLDER = {
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    *("guided_decoding_backend", "guided_whitespace_pattern", "logits_processors"),
    *("output_format", "n", "client_metadata"),
}
"""Declared fields of older clients and servers, of Codex, and of another API."""

USER = [{"role": "user", "content": "w3"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SMALLEST: dict[str, dict[str, Any]] = {
    CHAT: {"messages": USER},
    COMPLETIONS: {"prompt": "w3"},
    RESPONSES: {"input": "w3"},
    MESSAGES: {"messages": USER, "max_tokens": 9},
}
SAMPLING = {"temperature": 0.8}
VALUES: dict[str, Any] = {
    **{"temperature": 0.3, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "presence_penalty": 0.5},
    **{"frequency_penalty": 0.5, "repetition_penalty": 1.1, "seed": 7, "n": 2, "stop": ["a"]},
    **{"model": "policy", "messages": USER, "prompt": "w3", "user": "me", "metadata": {"a": "b"}},
    **{"response_format": {"type": "json_object"}, "tools": [TOOL], "tool_choice": "required"},
    **{"structured_outputs": {"regex": "a+"}, "parallel_tool_calls": False},
    **{"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True},
    **{"max_tokens": 9, "max_completion_tokens": 9, "top_logprobs": 2, "echo": True, "best_of": 2},
    **{"logit_bias": {"3": 1.0}, "suffix": "end", "reasoning_effort": "low"},
    **{"input": "w3", "instructions": "Be brief.", "max_output_tokens": 9, "background": True},
    **{"text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"}, "include": ["a"]},
    **{"system": "Be brief.", "stop_sequences": ["a"], "output_config": {"effort": "low"}},
    "output_format": {"type": "json_schema", "schema": {"type": "object"}},
}
"""A value with an effect for each field whose type the gateway checks; others get any value."""
ANY = ["a value"]
CHAT_ONLY = {"messages", "tools", "tool_choice", "parallel_tool_calls"}


@pytest.fixture(scope="module")
def vllm_requests() -> Any:
    child = [str(find_python()), "-c", LIST_FIELDS]
    listed = subprocess.run(child, capture_output=True, text=True, check=True, timeout=300)
    return json.loads(listed.stdout.splitlines()[-1])


def client_fields(path: str) -> set[str]:
    return {
        name
        for params in CLIENTS[path]
        for name in params.__required_keys__ | params.__optional_keys__
    }


def test_each_field_of_a_client_has_a_treatment() -> None:
    unknown = {
        path: client_fields(path) - OWN[path].keys() - SERVER_FIELDS.keys() for path in CLIENTS
    }
    assert not any(unknown.values()), unknown


@pytest.mark.nightly
def test_each_field_of_vllm_has_a_treatment(vllm_requests: Any) -> None:
    fields = {path: set(names) for path, names in vllm_requests["defaults"].items()}
    assert {path: names - SERVER_FIELDS.keys() for path, names in fields.items()} == {
        CHAT: set(),
        COMPLETIONS: set(),
    }
    sent = set().union(*fields.values(), *map(client_fields, CLIENTS))
    declared = SERVER_FIELDS.keys() | set().union(*(rules.keys() for rules in OWN.values()))
    assert declared - sent - OLDER == {PARTS}


def test_values_without_effect_are_those_of_vllm(vllm_requests: Any) -> None:
    assert vllm_requests["neutral"] == NEUTRAL_SAMPLING
    assert vllm_requests["efforts"] == list(EFFORTS)
    for defaults in vllm_requests["defaults"].values():
        for name in NO_EFFECT.keys() & defaults.keys():
            assert defaults[name] in (None, *NO_EFFECT[name]), name


def test_each_field_is_declared_once() -> None:
    for rules in (SERVER_RULES, RESPONSE_RULES, MESSAGE_RULES):
        names = list(chain.from_iterable(rule.fields for rule in rules))
        assert len(names) == len(set(names))
    for rule in SERVER_RULES:
        assert rule.allow is not None or rule.treatment is not Treatment.REFUSED


class Caller:
    """Sends one field at a time in a mode, and returns what the policy server got."""

    def __init__(self, stage: Any, vllm: Any, mode: str) -> None:
        self._stage, self._vllm = stage, vllm
        self.is_rollout = mode != "prod"
        self.trains = mode == "train"
        self._identity = stage.identity_of(mode) if self.is_rollout else None

    def post(self, path: str, fields: dict[str, Any], **claims: Any) -> Any:
        """Return the response to a request."""
        key = self._identity and self._stage.key(self._identity, sampling=SAMPLING, **claims)
        body = {"model": "policy", **SMALLEST[path], **fields}
        return self._stage.post(path, body, identity=self._identity, key=key)

    def sent(self, path: str, fields: dict[str, Any], **claims: Any) -> dict[str, Any]:
        """Return the body that the policy server got."""
        answer = self.post(path, fields, **claims)
        assert answer.status_code == 200, (path, fields, answer.text)
        body: dict[str, Any] = self._vllm.requests[-1]
        return body

    def refusal(self, path: str, fields: dict[str, Any], **claims: Any) -> str:
        """Return the sentence of a request that the policy server did not get."""
        before = len(self._vllm.requests)
        answer = self.post(path, fields, **claims)
        assert (answer.status_code, len(self._vllm.requests)) == (400, before), (path, fields)
        return str(answer.json()["error"]["message"])


@pytest.fixture(params=["train", "val", "prod"])
def caller(stage: Any, vllm: Any, request: Any) -> Caller:
    return Caller(stage, vllm, request.param)


def server_fields() -> Iterator[tuple[str, str, FieldRule]]:
    """Yield the path, the name and the rule of each field that the policy server may get."""
    for name, rule in SERVER_FIELDS.items():
        if name != PARTS:
            yield CHAT, name, rule
        if name not in {*OWN[COMPLETIONS], *CHAT_ONLY, PARTS}:
            yield COMPLETIONS, name, rule


def value_of(path: str, name: str) -> Any:
    if name == "logprobs":
        return True if path == CHAT else 1
    return VALUES.get(name, ANY)


def test_the_gateway_treats_each_field_as_declared(caller: Caller) -> None:
    for path, name, rule in server_fields():
        value = value_of(path, name)
        fields = {name: value} | ({"tools": [TOOL]} if name == "tool_choice" else {})
        if rule.treatment is Treatment.REFUSED and caller.trains:
            sentence = f"'{name}' is refused in mode train: {rule.reason}. Remove it"
            assert caller.refusal(path, fields).startswith(sentence)
            assert rule.allow is not None
            assert caller.sent(path, fields, allow=(rule.allow,))[name] == value
            continue
        sent = caller.sent(path, fields)
        if rule.treatment is Treatment.IMPOSED and caller.is_rollout:
            assert sent[name] == (NEUTRAL_SAMPLING | SAMPLING)[name], name
        elif rule.treatment is Treatment.CORRECTED and (caller.is_rollout or rule.everywhere):
            assert name not in sent, name
        else:
            assert sent[name] == value, name
        if rule.treatment is Treatment.REPLAYED and rule.allow and caller.trains:
            assert "is refused in mode train" in caller.refusal(path, fields, constrained="refused")


@pytest.mark.parametrize("path", [COMPLETIONS, RESPONSES, MESSAGES])
def test_the_gateway_treats_the_fields_of_an_api_as_declared(caller: Caller, path: str) -> None:
    for name, rule in OWN[path].items():
        fields = {name: value_of(path, name)}
        if rule.treatment is Treatment.REFUSED:
            assert rule.everywhere
            assert caller.refusal(path, fields) == f"'{name}' is refused: {rule.reason}."
            assert caller.sent(path, {name: None})
        else:
            assert name not in caller.sent(path, fields), name


def test_a_value_without_effect_is_always_passed_on(caller: Caller) -> None:
    for name, values in NO_EFFECT.items():
        path = RESPONSES if name in OWN[RESPONSES] and name not in SERVER_FIELDS else CHAT
        for value in values:
            received = caller.sent(path, {name: value})
            assert path == RESPONSES or received[name] == value, name
        caller.sent(path, {name: None})


def test_the_recorded_call_has_the_values_that_the_agent_sent(stage: Any) -> None:
    fields = {"temperature": 0.3, "seed": 7, "verbosity": "low", "request_id": "r"}
    key = stage.key(sampling=SAMPLING)
    assert stage.ask("w3", key=key, **fields).status_code == 200
    assert stage.ask("w3", identity=None, **fields).status_code == 200
    rollout, production = (span["attributes"] for span in stage.spans())
    for name, value in fields.items():
        assert rollout[f"ltrain.asked.{name}"] == value
    assert [name for name in production if "asked" in name] == ["ltrain.asked.request_id"]


def test_a_misspelt_field_is_named_in_training(caller: Caller) -> None:
    fields = {"temprature": 0.3}
    if not caller.trains:
        assert caller.sent(CHAT, fields)["temprature"] == 0.3
        return
    assert caller.refusal(CHAT, fields) == (
        "'temprature' is refused in mode train: what it does to the sampling is not known (did you "
        "mean 'temperature'?). Remove it, or set allow = [\"extra\"] under [rollout] in the recipe."
    )
    assert caller.sent(CHAT, fields, allow=(Allow.EXTRA,))["temprature"] == 0.3
    assert "did you mean" not in caller.refusal(CHAT, {"a_field_of_tomorrow": 1})
