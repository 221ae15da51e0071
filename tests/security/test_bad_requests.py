"""A bad request gets 4xx without a traceback, and never counts as an outage."""

import asyncio
import threading
import time
from typing import Any

import httpx
import pytest
from tests.fake_vllm import FakeVllm
from tests.train.gateway.stage import IDENTITY, Stage

from ltrain_instrument.allow import Allow
from ltrain_train.gateway import CallCounts

DEEP = '{"a":' * 450 + "1" + "}" * 450
LISTS = "[" * 900 + "]" * 900
USER = {"role": "user", "content": "w3"}


def post(stage: Stage, body: Any, **claims: Any) -> httpx.Response:
    raw = {"content": body} if isinstance(body, bytes) else {"json": body}
    path = f"/rollout/{IDENTITY.rollout}/attempt/{IDENTITY.attempt}/v1/chat/completions"
    headers = {"authorization": f"Bearer {stage.key(**claims)}"}
    return stage.http.post(path, headers=headers, **raw)


def message(response: httpx.Response) -> str:
    return str(response.json()["error"]["message"])


def closed(stage: Stage) -> CallCounts:
    return stage.client.close_attempt(IDENTITY, stage.key())


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": "policy", "messages": [USER], **fields}


RAW = {
    "deep object": b'{"model": "m", "messages": [{"role": "user", "content": "a"}], "metadata": '
    + DEEP.encode()
    + b"}",
    "deep list": b'{"model": "m", "messages": ' + LISTS.encode() + b"}",
    "deeper": b"[" * 100_000,
    "half a surrogate pair": b'{"model": "m", "messages": [{"content": "\\ud83d"}]}',
    "not UTF-8": b'{"model": "\xff"}',
    "NaN": b'{"model": "m", "messages": [], "temperature": NaN}',
    "infinity": b'{"model": "m", "messages": [], "temperature": 1e999}',
    "nothing": b"",
}

CONTENTS: tuple[Any, ...] = (5, {}, [5], True)

VALUES: dict[str, tuple[Any, ...]] = {
    "messages": (
        *([{"role": "user", "content": content}] for content in CONTENTS),
        *(5, "hi", {}, [], [5], [[]], None, [{"content": "a"}], [{"role": 5}]),
        [{"role": "assistant", "tool_calls": 5}],
        [{"role": "assistant", "tool_calls": [5]}],
        [{"role": "assistant", "tool_calls": [{"function": 5}]}],
        [{"role": "tool", "tool_call_id": 5, "content": "a"}],
    ),
    "model": (5, None, []),
    "temperature": ("hot", -1, True, [], 10**19),
    "top_p": (0, 2, "a"),
    "max_tokens": (-1, 0, "a", 1.5, 2**40),
    "max_completion_tokens": (-1, 0, {}),
    "n": (0, -1, 10**9, "a", True),
    "seed": ("a", 2**63, 2**70, 1.5),
    "stop": (5, [5], {}),
    "stream": ("yes", 1, {}),
    "stream_options": ("yes", {"include_usage": 5}),
    "logprobs": (5, "a"),
    "top_logprobs": ("a", 1.5),
    "tools": (5, [5], {}),
    "tool_choice": (5, []),
    "response_format": (5, "json"),
    "logit_bias": (5, {"a": "b"}, {str(i): 1.0 for i in range(5000)}),
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "repetition_penalty"), ("a",)),
    **dict.fromkeys(("top_k", "min_p", "parallel_tool_calls", "return_token_ids"), ("a",)),
    **dict.fromkeys(("user", "metadata", "reasoning_effort"), (5,)),
}
"""Invalid values, by field."""

FIELDS: list[dict[str, Any]] = [
    {name: value} for name, values in VALUES.items() for value in values
]


@pytest.mark.parametrize("raw", RAW.values(), ids=RAW)
def test_a_body_that_is_no_request_gets_400(stage: Stage, vllm: FakeVllm, raw: bytes) -> None:
    response = post(stage, raw)
    assert response.status_code == 400, response.text
    assert "request" in message(response)
    assert (closed(stage).failures, vllm.requests) == (0, [])


def test_a_field_of_a_wrong_type_or_value_gets_400(stage: Stage, vllm: FakeVllm) -> None:
    for field in FIELDS:
        response = post(stage, ask(**field))
        assert response.status_code == 400, (field, response.text)
        (name,) = field
        assert name in message(response), (field, message(response))
        assert len(message(response)) < 1000
    assert vllm.requests == []
    counts = closed(stage)
    assert (counts.llm_calls, counts.failures, counts.call_seconds) == (0, 0, 0)


def test_production_is_checked_too(stage: Stage, vllm: FakeVllm) -> None:
    for field in FIELDS:
        response = stage.http.post("/v1/chat/completions", json=ask(**field))
        assert response.status_code == 400, (field, response.text)
    assert vllm.requests == []


def test_what_agents_send_passes(stage: Stage) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    texts = [{"type": "text", "text": "w3"}]
    sent = ask(
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": texts},
            {"role": "user", "content": texts, "name": "ann"},
        ],
        **{"temperature": 1, "top_p": 0.9, "max_tokens": 9, "stop": ["Observation:"], "seed": 4},
        **{"n": 1, "tools": [{"type": "function", "function": {"name": "f"}}], "user": "me"},
        **{"tool_choice": "auto", "parallel_tool_calls": True, "response_format": {"type": "text"}},
        **{"logprobs": True, "top_logprobs": 2, "stream": False, "metadata": {"a": "b"}},
        **{"presence_penalty": 0, "frequency_penalty": 0.5, "logit_bias": None},
    )
    assert post(stage, sent).status_code == 200


REFUSED: dict[Allow, list[dict[str, Any]]] = {
    Allow.CONSTRAINED: [
        {"guided_json": {}},
        {"guided_choice": ["a"]},
        {"logit_bias": {"3": 100}},
        {"allowed_token_ids": [3]},
        {"bad_words": ["a"]},
        {"min_tokens": 5},
        {"vllm_xargs": {"a": 1}},
    ],
    Allow.CHOICES: [{"n": 2}],
    Allow.TEMPLATE: [
        {"continue_final_message": True},
        {"add_generation_prompt": False},
        {"chat_template": "{{ messages }}"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"truncate_prompt_tokens": 5},
        {"echo": True},
    ],
    Allow.STOPPING: [{"stop_token_ids": [3]}, {"ignore_eos": True}],
    Allow.MULTIMODAL: [
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        {"messages": [{"role": "user", "content": [{"text": "no type"}]}]},
    ],
    Allow.EXTRA: [{"prompt_logprobs": 1}, {"priority": 9}, {"a_field_of_tomorrow": 1}],
}


GRAMMARS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}},
    {"tool_choice": "required"},
    {"tool_choice": {"type": "function", "function": {"name": "f"}}},
    {"structured_outputs": {"grammar": "root ::= ("}},
]
"""Fields of calls that the learner trains under the server's masks."""


@pytest.mark.parametrize("field", GRAMMARS, ids=str)
def test_a_recipe_that_refuses_grammars_refuses_each_field(
    stage: Stage, vllm: FakeVllm, field: dict[str, Any]
) -> None:
    limits = {"sampling": {"temperature": 1.0}, "constrained": "refused"}
    others = tuple(set(Allow) - {Allow.CONSTRAINED})
    refused = post(stage, ask(**field), allow=others, **limits)
    assert refused.status_code == 400
    assert "is refused in mode train" in message(refused)
    assert vllm.requests == []
    assert post(stage, ask(**field), allow=(Allow.CONSTRAINED,), **limits).status_code == 200


@pytest.mark.parametrize("need", REFUSED)
def test_a_call_that_could_not_be_trained_is_refused_unless_it_is_allowed(
    stage: Stage, vllm: FakeVllm, need: Allow
) -> None:
    others = tuple(set(Allow) - {need})
    for field in REFUSED[need]:
        response = post(stage, ask(**field), sampling={"temperature": 1.0}, allow=others)
        assert response.status_code == 400, field
        (name,) = field
        assert f"'{name}' is refused in mode train" in message(response)
        assert f'allow = ["{need.value}"]' in message(response)
    assert vllm.requests == []
    for field in REFUSED[need]:
        allowed = post(stage, ask(**field), sampling={"temperature": 1.0}, allow=(need,))
        assert allowed.status_code == 200, (field, allowed.text)
    assert closed(stage).failures == 0


def test_other_modes_allow_all_options(stage: Stage) -> None:
    other = Stage.identity_of("val")
    for fields in REFUSED.values():
        for field in fields:
            response = stage.ask("w3", identity=other, **field)
            assert response.status_code == 200, (field, response.text)


def test_another_path_is_refused_with_a_sentence(stage: Stage) -> None:
    prefix = f"/rollout/{IDENTITY.rollout}/attempt/{IDENTITY.attempt}"
    headers = {"authorization": f"Bearer {stage.key()}"}
    for path in ("/v1/embeddings", "/v1/responses/r1", "/v1/messages/batches", "/tokenize"):
        response = stage.http.post(prefix + path, json={"prompt": "a"}, headers=headers)
        assert response.status_code == 404
        assert "The gateway has no POST" in message(response)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_the_server_fails_on_is_the_agents(
    stage: Stage, vllm: FakeVllm, stream: bool
) -> None:
    response = stage.ask("boom", stream=stream)
    assert response.status_code == 400
    assert "fails on this request (ServerFailed: 500: the engine is dead)" in message(response)
    assert stage.ask("w3").status_code == 200
    counts = closed(stage)
    assert (counts.llm_calls, counts.spans, counts.failures) == (1, 2, 0)


def test_a_connection_that_ends_without_a_response_is_an_outage(
    stage: Stage, vllm: FakeVllm
) -> None:
    assert stage.ask("hangup w3").status_code == 200
    assert len(vllm.requests) == 2


def test_a_server_that_fails_once_is_retried(stage: Stage, vllm: FakeVllm) -> None:
    assert stage.ask("once w3").status_code == 200
    assert (closed(stage).failures, len(vllm.requests)) == (0, 2)


def test_a_stream_that_breaks_while_the_server_runs_is_the_agents_error(stage: Stage) -> None:
    response = stage.ask("w3 w4 vanish", stream=True)
    assert '"code":400' in response.text.split("\n\n")[-2]
    assert closed(stage).failures == 0


def test_a_dead_server_is_an_outage_until_the_request_is_answered(
    stage: Stage, vllm: FakeVllm
) -> None:
    vllm.sick = True
    assert stage.ask("w3").status_code == 503
    assert stage.ask("w4").status_code == 503
    vllm.sick = False
    assert stage.ask("w3").status_code == 200
    counts = closed(stage)
    assert (counts.llm_calls, counts.failures) == (1, 1)  # "w4" was never answered


def test_the_seconds_that_an_attempt_waited_at_the_gate_are_counted(stage: Stage) -> None:
    async def shut() -> None:
        async with stage.publication.gate.shut("a test"):
            waiting.set()
            while not over.is_set():
                await asyncio.sleep(0.01)

    waiting, over = threading.Event(), threading.Event()
    asyncio.run_coroutine_threadsafe(shut(), stage.loop)
    assert waiting.wait(10)
    answers: list[int] = []
    calls = [
        threading.Thread(target=lambda text=text: answers.append(stage.ask(text).status_code))
        for text in ("w3", "w4")
    ]
    for call in calls:
        call.start()
    time.sleep(1.2)
    counts = closed(stage)  # the deadline came while both waited
    over.set()
    for call in calls:
        call.join()
    assert answers == [403, 403]
    assert counts.failures == 2
    assert 0.5 < counts.call_seconds < 30


@pytest.mark.parametrize("sick", [False, True])
def test_a_client_that_disconnects_decides_whose_error_it_is(
    stage: Stage, vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch, sick: bool
) -> None:
    """A client's timeout is the client's error, unless the policy server died during its call."""
    monkeypatch.setattr("ltrain_train.gateway.serving.host.UPSTREAM_POLL", 0.05)
    monkeypatch.setattr("tests.fake_vllm.SLOW", 4.0)
    stage.watch()
    threading.Timer(0.3, lambda: setattr(vllm, "sick", sick)).start()
    path = f"/rollout/{IDENTITY.rollout}/attempt/{IDENTITY.attempt}/v1/chat/completions"
    headers = {"authorization": f"Bearer {stage.key()}"}
    body = ask(messages=[{"role": "user", "content": "slow w3 w4"}], stream=True)
    with pytest.raises(httpx.ReadTimeout):
        stage.http.post(path, json=body, headers=headers, timeout=3)
    until = time.monotonic() + 20
    while not stage.spans() and time.monotonic() < until:
        time.sleep(0.05)
    assert closed(stage).failures == int(sick)
