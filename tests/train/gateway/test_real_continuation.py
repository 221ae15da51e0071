"""A rollout of a thinking model, whose chat template removes thinking, is one row of tokens."""

import json
import struct
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from anthropic import Anthropic
from openai import OpenAI
from tests.train.thinking import CHAT, COUNT, TOOL, write_thinking_model

hugging_face: Any = transformers  # its functions have no types
PARSERS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
FUNCTION: Any = TOOL["function"]
History = list[dict[str, Any]]
Turn = tuple[History, History]
"""An answer without its thinking, and the results of its tools."""
pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_thinking_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def started(model: Path, tmp_path_factory: pytest.TempPathFactory, load: Any) -> Iterator[Any]:
    folder, options = tmp_path_factory.mktemp("vllm"), (*PARSERS, "--reasoning-parser", "qwen3")
    with load("stage").before_vllm(folder, model, *options, continues=True) as started:
        yield started


def ask_chat(base: str, key: str, history: History, has_tools: bool, stream: bool) -> Turn:
    tools = {"tools": [TOOL]} if has_tools else {}
    sent = {"model": "policy", "messages": history, "max_tokens": 200, **tools}
    client: Any
    with OpenAI(base_url=f"{base}/v1", api_key=key) as client:
        if stream:
            chunks = list(client.chat.completions.create(**sent, stream=True))
            parts = [each.choices[0].delta for each in chunks if each.choices]
        else:
            parts = [client.chat.completions.create(**sent).choices[0].message]
    content = "".join(each.content or "" for each in parts)
    called = [call for each in parts for call in each.tool_calls or []]
    ids = [each.id for each in called if each.id]  # one at most: the model makes one call
    arguments = "".join(each.function.arguments or "" for each in called)
    function = {"name": FUNCTION["name"], "arguments": arguments}
    calls = [{"id": id, "type": "function", "function": function} for id in ids]
    answer = {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}
    return [answer], [{"role": "tool", "tool_call_id": id, "content": "1"} for id in ids]


def ask_messages(base: str, key: str, history: History, has_tools: bool, stream: bool) -> Turn:
    tool = {"name": FUNCTION["name"], "input_schema": FUNCTION["parameters"]}
    tools = {"tools": [tool]} if has_tools else {}
    sent = {"model": "policy", "messages": history, "max_tokens": 200, **tools}
    client: Any
    with Anthropic(base_url=base, auth_token=key) as client:
        if stream:
            with client.messages.stream(**sent) as events:
                message = events.get_final_message()
        else:
            message = client.messages.create(**sent)
    blocks = [each.model_dump(exclude_none=True) for each in message.content]
    results = [
        {"type": "tool_result", "tool_use_id": each["id"], "content": "1"}
        for each in blocks
        if each["type"] == "tool_use"
    ]
    answer = [each for each in blocks if each["type"] != "thinking"]
    returned: History = [{"role": "user", "content": results}] if results else []
    return [{"role": "assistant", "content": answer}], returned


def ask_responses(base: str, key: str, history: History, has_tools: bool, stream: bool) -> Turn:
    tools = {"tools": [{"type": "function", **FUNCTION}]} if has_tools else {}
    sent = {"model": "policy", "input": history, "max_output_tokens": 200, **tools}
    client: Any
    with OpenAI(base_url=f"{base}/v1", api_key=key) as client:
        response = client.responses.create(**sent, stream=stream)
        if stream:
            response = list(response)[-1].response
    items = [each.model_dump(exclude_none=True) for each in response.output]
    results = [
        {"type": "function_call_output", "call_id": each["call_id"], "output": "1"}
        for each in items
        if each["type"] == "function_call"
    ]
    return [each for each in items if each["type"] != "reasoning"], results


Ask = Callable[[str, str, History, bool, bool], Turn]
ROLLOUTS = [
    (ask_chat, False, 10),
    (ask_chat, True, 4),
    (ask_messages, False, 4),
    (ask_messages, True, 4),
    (ask_responses, False, 4),
    (ask_responses, True, 4),
]
"""How an agent asks, whether it streams, and its turns."""


def roll_out(stage: Any, question: str, ask: Ask, stream: bool, turns: int) -> list[dict[str, Any]]:
    """Run an agent that does not return thinking, and return the attributes of its call spans."""
    rollout = f"{question}-{ask.__name__}-{stream}".replace(" ", "-")
    identity = replace(stage.identity, rollout=rollout)
    key = stage.key(identity, sampling={"temperature": 1.0})
    base = f"{stage.url}/rollout/{rollout}/attempt/{identity.attempt}"
    history: History = [{"role": "user", "content": question}]
    for _ in range(turns):
        answer, results = ask(base, key, history, question == COUNT, stream)
        history += [*answer, *(results or [{"role": "user", "content": question}])]
    found = [each["attributes"] for each in stage.spans()]
    own = [each for each in found if each.get("ltrain.rollout.id") == rollout]
    return [each for each in own if "ltrain.continued" in each]


@pytest.mark.parametrize("question", [CHAT, COUNT])
@pytest.mark.parametrize(("ask", "stream", "turns"), ROLLOUTS)
def test_a_rollout_is_one_row_with_the_log_probabilities_of_a_forward_pass(
    started: Any, load: Any, model: Path, question: str, ask: Ask, stream: bool, turns: int
) -> None:
    stage, recorder = started
    before = len(recorder.recorded_calls)
    spans = roll_out(stage, question, ask, stream, turns)
    assert [each.get("ltrain.not_continued") for each in spans] == [None] * turns
    answers: list[bytes] = []
    until = time.monotonic() + 30
    while len(answers) < turns and time.monotonic() < until:  # the proxy records after it answers
        time.sleep(0.02)
        calls = recorder.recorded_calls[before:]
        answers = [each.answer for each in calls if each.path == "/v1/chat/completions"]
    row: list[int] = []
    sampled: list[tuple[int, list[float]]] = []
    for each, answer in zip(spans, answers, strict=True):
        prompt = json.loads(each["ltrain.prompt_token_ids"])
        response = json.loads(each["ltrain.response_token_ids"])
        assert load("recorder").read_response(answer)[0][:2] == (prompt, response)
        assert prompt[: len(row)] == row and each["ltrain.continued"] == len(row)
        packed = b64decode(each["ltrain.response_logprobs"])
        sampled.append((len(prompt), list(struct.unpack(f"<{len(packed) // 4}f", packed))))
        row = prompt + response
    policy = hugging_face.AutoModelForCausalLM.from_pretrained(model).float().eval()
    ids = torch.tensor(row)
    with torch.no_grad():
        logits = policy(ids[None]).logits[0].log_softmax(-1)
    computed = logits[:-1].gather(1, ids[1:, None])[:, 0]
    for start, recorded in sampled:
        again = computed[start - 1 : start - 1 + len(recorded)]
        assert torch.allclose(again, torch.tensor(recorded), atol=1e-4)
