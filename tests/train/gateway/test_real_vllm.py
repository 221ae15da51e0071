"""The gateway with a real vLLM on a tiny model, and a recording proxy between the two."""

import json
import struct
import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import transformers
from safetensors.torch import load_file
from tests.train.tiny import write_model

from ltrain_instrument.allow import Allow
from ltrain_train.gateway import NO_EFFECT
from ltrain_train.gateway.connection import GatewayRefused
from ltrain_train.gateway.serving.vllm import Vllm, VllmOptions
from ltrain_train.learner.shared_memory import SharedMemory
from ltrain_train.processes import Children

hugging_face: Any = transformers  # its functions have no types
CALLS = ("/v1/chat/completions", "/v1/completions")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="module")
def started(folder: Path, load: Any) -> Iterator[Any]:
    model = write_model(folder / "model", 0, tied=True)
    with load("stage").before_vllm(folder, model) as started:
        yield started


@pytest.fixture(scope="module")
def recorder(started: Any) -> Any:
    return started[1]


@pytest.fixture(scope="module")
def stage(started: Any) -> Any:
    stage = started[0]
    draft = write_model(stage.policies.draft("policy"), 1, tied=True)
    stage.policies.register_files("policy", draft, parent=0, dataset="d", recipe="r")
    return stage


def floats(text: str) -> list[float]:
    packed = b64decode(text)
    return list(struct.unpack(f"<{len(packed) // 4}f", packed))


def read_prompt(request: bytes) -> str:
    body = json.loads(request)
    return str(body["prompt"] if "prompt" in body else body["messages"][0]["content"])


def read_span(span: dict[str, Any]) -> list[tuple[Any, list[int], list[float]]]:
    """Return the same of each choice in a span."""
    attributes = span["attributes"]
    prompt = json.loads(attributes["ltrain.prompt_token_ids"])
    ids, logprobs = (
        json.loads(attributes["ltrain.response_token_ids"]),
        attributes["ltrain.response_logprobs"],
    )
    if not logprobs.startswith("["):
        return [(prompt, ids, floats(logprobs))]
    each = zip(ids, json.loads(logprobs), strict=True)
    return [(prompt, tokens, floats(packed)) for tokens, packed in each]


def request_of(api: str, content: str, number: int) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of a request."""
    fields = {"model": "policy", "temperature": 0.1, "stream": bool(number % 2)}
    limit, several = 8 + number, {"n": 1 + (number % 3 == 0)}
    messages = [{"role": "user", "content": content}]
    own_fields: dict[str, dict[str, Any]] = {
        "chat/completions": {"messages": messages, "max_tokens": limit, **several},
        "completions": {"prompt": content, "max_tokens": limit, **several},
        "responses": {"input": content, "max_output_tokens": limit},
        "messages": {"messages": messages, "max_tokens": limit},
    }
    return f"/v1/{api}", {**fields, **own_fields[api]}


@pytest.mark.parametrize("api", ["chat/completions", "completions", "responses", "messages"])
def test_ids_and_logprobs_are_what_vllm_answered_byte_for_byte(
    stage: Any, recorder: Any, load: Any, api: str
) -> None:
    before = len(stage.spans()), len(recorder.recorded_calls)
    key = stage.key(sampling={"temperature": 0.9}, allow=(Allow.CHOICES,))

    def ask(number: int) -> int:
        path, body = request_of(api, f"w{number} w7", number)
        status: int = stage.post(path, body, key=key).status_code
        return status

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, range(12))) == [200] * 12
    calls: list[Any] = []
    until = time.monotonic() + 30
    while len(calls) < 12 and time.monotonic() < until:  # the proxy records after it has answered
        time.sleep(0.02)
        calls = [each for each in recorder.recorded_calls[before[1] :] if each.path in CALLS]
    read_response = load("recorder").read_response
    responses = {read_prompt(call.request): call.answer for call in calls}
    spans = [span for span in stage.spans()[before[0] :] if span["scope"] == "ltrain.gateway"]
    assert len(spans) == len(responses) == 12
    for span in spans:
        attributes = span["attributes"]
        (message,) = json.loads(attributes["gen_ai.input.messages"])
        answer = responses[message["parts"][0]["content"]]
        assert read_span(span) == read_response(answer)
        assert (
            sum(len(ids) for _, ids, _ in read_span(span))
            == attributes["ltrain.response_token_count"]
        )
        assert attributes["gen_ai.request.temperature"] == 0.9
        assert attributes["ltrain.asked.temperature"] == 0.1


def test_a_prompt_of_token_ids_is_continued(stage: Any) -> None:
    whole = stage.complete("w1 w2 w3", temperature=0, max_tokens=8, return_token_ids=True).json()
    ids = whole["choices"][0]["prompt_token_ids"]
    again = stage.complete(ids, temperature=0, max_tokens=8).json()
    assert again["choices"][0]["text"] == whole["choices"][0]["text"]
    assert stage.spans()[-1]["attributes"]["ltrain.prompt_token_ids"] == json.dumps(
        ids, separators=(",", ":")
    )


FORMS: list[dict[str, Any]] = [
    {"skip_special_tokens": False},
    {"spaces_between_special_tokens": False},
    {"include_stop_str_in_output": True},
    {"return_tokens_as_token_ids": True, "logprobs": True, "top_logprobs": 3},
    {"return_prompt_text": True},
    {"return_token_offsets": True, "mm_payload": "none", "routed_experts_prompt_start": 1},
    {"stream": True, "stream_interval": 3, "stream_options": {"include_usage": True}},
    {"include_reasoning": False},
    {"length_penalty": 2.0},
    {"cache_salt": "salt", "session_id": "s", "service_tier": "auto", "store": True, "user": "me"},
    {"prediction": {"type": "content", "content": "w3"}, "metadata": {"a": "b"}},
    {"moderation": {"model": "m"}, "safety_identifier": "s", "prompt_cache_key": "k"},
    {"verbosity": "low", "web_search_options": {}, "request_id": "r"},
]
"""Fields that the gateway passes on or removes."""


def test_no_field_that_is_passed_on_changes_a_token(stage: Any) -> None:
    elsewhere = {"tool_choice", "background"}
    neutral = [
        {name: value}
        for name, values in NO_EFFECT.items()
        for value in values
        if name not in elsewhere
    ]
    key = stage.key(sampling={"temperature": 0.0})
    before = len(stage.spans())
    for fields in ({}, *FORMS, *neutral):
        answer = stage.ask("w1 w7", key=key, max_tokens=12, stop=["no such text"], **fields)
        assert answer.status_code == 200, (fields, answer.text)
    free, *others = (read_span(span) for span in stage.spans()[before:])
    for fields, found in zip([*FORMS, *neutral], others, strict=True):
        [(prompt, ids, logprobs)] = found
        assert (prompt, ids) == free[0][:2], fields
        assert logprobs == pytest.approx(free[0][2], abs=1e-4), fields


def test_new_weights_change_the_responses_and_old_weights_restore_them(stage: Any) -> None:
    def greedy() -> tuple[str, Any]:
        answer = stage.ask("w1 w2 w3", temperature=0, max_tokens=12, logprobs=True).json()
        choice = answer["choices"][0]
        return choice["message"]["content"], choice["logprobs"]

    before = greedy()
    seconds = stage.client.load("policy", 1)
    changed = greedy()
    stage.client.load("policy", 0)
    assert seconds < 30
    assert changed[0] != before[0]
    assert greedy() == before
    versions = [span["attributes"].get("ltrain.policy.version") for span in stage.spans()]
    assert versions[-3:] == [0, 1, 0]


def require_version(stage: Any, version: int) -> None:
    """Check that a call has the log-probabilities of the version."""
    stage.ask("w1 w2 w3", max_tokens=12)
    [(prompt, response, logprobs)] = read_span(stage.spans()[-1])
    folder = stage.policies.path("policy", version)
    model = hugging_face.AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        rows = model(torch.tensor([prompt + response])).logits[0].log_softmax(-1)
    computed = rows[len(prompt) - 1 : -1].gather(1, torch.tensor(response)[:, None])[:, 0]
    assert logprobs == pytest.approx(computed.tolist(), abs=1e-4)


def test_a_call_has_the_log_probabilities_of_its_version(stage: Any) -> None:
    """All tensors are those of the version, also an output layer that is tied to the embedding."""
    for version in (1, 0):
        stage.client.load("policy", version)
        require_version(stage, version)


def test_weights_reach_vllm_in_memory_and_are_compared_with_the_version(stage: Any) -> None:
    tensors = load_file(stage.policies.path("policy", 1) / "model.safetensors")
    memory = SharedMemory(tensors, torch.float32)
    memory.fill(tensors.items())
    shared = memory.describe()
    stage.client.offer("policy", shared)
    require_version(stage, 0)  # while vLLM loads beside
    stage.client.load("policy", 1, shared=shared)
    require_version(stage, 1)
    stage.client.load("policy", 0)
    memory.fill({name: x + 1 if "norm" in name else x for name, x in tensors.items()}.items())
    other = shared.model_copy(update={"learner": "another"})
    with pytest.raises(GatewayRefused, match=r"another tensor \S*norm\S* than '\S*v1' has"):
        stage.client.load("policy", 1, shared=other)
    require_version(stage, 0)
    memory.close()
    gone = shared.model_copy(update={"token": "0" * 32})
    stage.client.load("policy", 1, shared=gone)
    require_version(stage, 1)
    assert stage.log_lines[-2].startswith("vLLM loads new weights from their files: ")
    stage.client.load("policy", 0)


def test_weights_are_replaced_while_calls_arrive(stage: Any) -> None:
    """Each response is that of its version, whatever was in flight at the replacement."""
    before, published = len(stage.spans()), threading.Event()

    def ask() -> list[int]:
        statuses = []
        while not published.is_set():
            statuses.append(stage.ask("w9", temperature=0, max_tokens=6).status_code)
        return statuses

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask) for _ in range(4)]
        for version in (1, 0, 1, 0):
            time.sleep(0.2)
            stage.client.load("policy", version)
        published.set()
        assert {status for each in asking for status in each.result()} == {200}
    by_version: dict[int, set[str]] = {}
    for span in stage.spans()[before:]:
        attributes = span["attributes"]
        ids = by_version.setdefault(attributes["ltrain.policy.version"], set())
        ids.add(attributes["ltrain.response_token_ids"])
    assert {version: len(ids) for version, ids in by_version.items()} == {0: 1, 1: 1}


BAD: list[dict[str, Any]] = [
    {"temperature": 90},
    {"max_tokens": 2**31 - 1},
    {"n": 64, "temperature": 0},
    {"seed": -(2**63)},
    {"top_logprobs": -7, "logprobs": True},
    {"top_logprobs": 10**6, "logprobs": True},
    {"logit_bias": {"99999999": 1.0}},
    {"logit_bias": {"not a token": 1.0}},
    {"logit_bias": {"3": 1e30}},
    {"stop": [""]},
    {"stop": ["a"] * 1000},
    {"response_format": {"type": "json_schema"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": 5}}},
    {"response_format": {"type": "no such type"}},
    {"structured_outputs": {"grammar": "root ::= ("}},
    {"structured_outputs": {"regex": "(("}},
    {"structured_outputs": {"json": {"type": "no such type"}}},
    {"structured_outputs": {"choice": []}},
    {"structured_outputs": 5},
    {"tools": [{}]},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]},
    {"tool_choice": "required"},
    {"tool_choice": {"type": "function", "function": {"name": "absent"}}},
    {"tool_choice": {}},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
    {"messages": [{"role": "user", "content": [{"type": "no such part"}]}]},
    {"messages": [{"role": "user", "content": [{}]}]},
    {"messages": [{"role": "no such role", "content": "a"}]},
    {"messages": [{"role": "tool", "content": None}]},
    {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
    {"messages": [{"role": "user", "content": "w1 " * 5000}]},
    {"messages": [{"role": "user", "content": "\0"}]},
    {"chat_template": "{{ no such"},
    {"chat_template": "{% for i in range(10**9) %}{% endfor %}"},
    {"chat_template_kwargs": {"chat_template": 5, "tokenize": True, "messages": 5}},
    {"continue_final_message": True},
    {"add_generation_prompt": "perhaps"},
    {"truncate_prompt_tokens": -5},
    {"truncate_prompt_tokens": 10**9},
    {"min_tokens": 10**6},
    {"allowed_token_ids": []},
    {"allowed_token_ids": [10**9]},
    {"bad_words": ["\0", ""]},
    {"stop_token_ids": [10**12]},
    {"prompt_logprobs": 10**6},
    {"priority": 5},
    {"vllm_xargs": {"a": [[]]}},
    {"documents": [{"a": 5}]},
    {"kv_transfer_params": {"do_remote_prefill": True}},
    {"use_beam_search": True, "n": 3},
    {"reasoning_effort": "no such effort"},
    {"request_id": ""},
    {"cache_salt": ""},
    {"mm_processor_kwargs": {"a": 5}},
    {"stream": True, "stream_options": {"include_usage": None, "a": 5}},
    {"a field of tomorrow": 5},
]


def test_the_refusals_of_too_many_tokens_name_the_setting(stage: Any) -> None:
    other = stage.identity_of("val")
    for content, max_tokens in (("w1 " * 5000, 4), ("w1", 50_000)):
        answer = stage.ask(content, identity=other, max_tokens=max_tokens)
        assert answer.status_code == 400
        assert "The limit is serve.max_model_len in the recipe" in answer.text, answer.text


def test_bad_input_is_the_agents_error_whatever_status_vllm_returns(stage: Any) -> None:
    """vLLM answers some of it with status 500; the gateway reports that the request is at fault."""
    other = stage.identity_of("val")  # in mode train most of it does not come so far
    answers = {}
    for field in BAD:
        sent = {"max_tokens": 4, **field}
        path = f"/rollout/{other.rollout}/attempt/{other.attempt}/v1/chat/completions"
        body = {"model": "policy", "messages": [{"role": "user", "content": "w1"}], **sent}
        headers = {"authorization": f"Bearer {stage.key(other)}"}
        answer = stage.http.post(path, json=body, headers=headers)
        text = answer.text if answer.status_code != 200 else ""
        answers[json.dumps(field)[:60]] = (answer.status_code, text[:120])
    assert {code for code, _ in answers.values()} <= {200, 400, 404, 422}, answers
    assert stage.ask("w1", identity=other, max_tokens=2).status_code == 200
    at_fault = [field for field, (_, text) in answers.items() if "fails on this request" in text]
    print("status 500 of vLLM for:", *at_fault, sep="\n  ")
    assert stage.client.close_attempt(other, stage.key(other)).failures == 0


def test_the_engine_is_a_fork_of_the_server_and_ends_with_it(stage: Any, folder: Path) -> None:
    """A fork holds the server's socket too: if it went on, calls would wait for an answer."""
    with Children() as children:
        options = VllmOptions(dtype="float32")
        sockets, log = folder / "other", folder / "other.log"
        vllm = Vllm(children, name="policy", options=options, log=log, sockets=sockets)
        vllm.start(folder / "model")
        server = next(
            each
            for each in psutil.Process(vllm.process.child.pid).children(recursive=True)
            if any(part.endswith("vllm_process.py") for part in each.cmdline())
        )
        processes = server.children(recursive=True)
        assert processes
        assert not any("spawn" in " ".join(each.cmdline()) for each in processes)
        server.kill()
        _, alive = psutil.wait_procs(processes, timeout=30)
        assert not alive
