"""A rollout of a thinking model, whose chat template removes thinking, is one row of tokens."""

import json
import struct
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.train.thinking import CHAT, COUNT, TOOL, write_thinking_model

hugging_face: Any = transformers  # its functions have no types
TURNS = 10
PARSERS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_thinking_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def stage(model: Path, tmp_path_factory: pytest.TempPathFactory, load: Any) -> Iterator[Any]:
    folder, options = tmp_path_factory.mktemp("vllm"), (*PARSERS, "--reasoning-parser", "qwen3")
    with load("stage").before_vllm(folder, model, *options, continues=True) as (stage, _):
        yield stage


def roll_out(stage: Any, question: str) -> list[dict[str, Any]]:
    """Run an agent that does not return thinking, and return the attributes of its call spans."""
    rollout = question.replace(" ", "-")
    identity = replace(stage.identity, rollout=rollout)
    key = stage.key(identity, sampling={"temperature": 1.0})
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    tools = {"tools": [TOOL]} if question == COUNT else {}
    for turn in range(TURNS):
        body = {"model": "policy", "messages": messages, "max_tokens": 200, **tools}
        answer = stage.post("/v1/chat/completions", body, identity=identity, key=key)
        assert answer.status_code == 200, answer.text
        message = answer.json()["choices"][0]["message"]
        calls = message.get("tool_calls") or []
        more = {"tool_calls": calls} if calls else {}
        messages.append({"role": "assistant", "content": message["content"] or "", **more})
        for call in calls:
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(turn)})
        if not calls:
            messages.append({"role": "user", "content": question})
    found = [each["attributes"] for each in stage.spans()]
    own = [each for each in found if each.get("ltrain.rollout.id") == rollout]
    return [each for each in own if "ltrain.continued" in each]


@pytest.mark.parametrize("question", [CHAT, COUNT])
def test_a_rollout_is_one_row_with_the_log_probabilities_of_a_forward_pass(
    stage: Any, model: Path, question: str
) -> None:
    spans = roll_out(stage, question)
    assert len(spans) == TURNS
    assert [each.get("ltrain.not_continued") for each in spans] == [None] * TURNS
    row: list[int] = []
    sampled: list[tuple[int, list[float]]] = []
    for each in spans:
        prompt = json.loads(each["ltrain.prompt_token_ids"])
        assert prompt[: len(row)] == row and each["ltrain.continued"] == len(row)
        packed = b64decode(each["ltrain.response_logprobs"])
        sampled.append((len(prompt), list(struct.unpack(f"<{len(packed) // 4}f", packed))))
        row = prompt + json.loads(each["ltrain.response_token_ids"])
    policy = hugging_face.AutoModelForCausalLM.from_pretrained(model).float().eval()
    ids = torch.tensor(row)
    with torch.no_grad():
        logits = policy(ids[None]).logits[0].log_softmax(-1)
    computed = logits[:-1].gather(1, ids[1:, None])[:, 0]
    for start, recorded in sampled:
        again = computed[start - 1 : start - 1 + len(recorded)]
        assert torch.allclose(again, torch.tensor(recorded), atol=1e-4)
