"""Rollouts of a thinking model, whose template removes thinking, are one row each."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers
from tests.train.thinking import CHAT, COUNT, TOOL

hugging_face: Any = transformers  # its functions have no types
TURNS = 10
PARSERS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    return Path("/tmp/think_tokens")


@pytest.fixture(scope="module")
def stage(folder: Path, model: Path, load: Any) -> Iterator[Any]:
    options = (*PARSERS, "--reasoning-parser", "qwen3")
    with load("stage").before_vllm(folder, model, *options, continues=True) as (stage, _):
        yield stage


def roll_out(stage: Any, question: str, number: int, stream: bool) -> list[dict[str, Any]]:
    """Run an agent of ten turns that drops thinking, and return the attributes of its spans."""
    identity = stage.identity_of("train")
    identity = type(identity)(**{**identity_fields(identity), "rollout": f"r{number}"})
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    for turn in range(TURNS):
        body = {"model": "policy", "messages": messages, "max_tokens": 200}
        if question == COUNT:
            body["tools"] = [TOOL]
        key = stage.key(identity, sampling={"temperature": 1.0})
        got = stage.post("/v1/chat/completions", body, identity=identity, key=key)
        assert got.status_code == 200, got.text
        said = got.json()["choices"][0]["message"]
        print(said)
        calls = said.get("tool_calls") or []
        messages.append(
            {
                "role": "assistant",
                "content": said["content"],
                **({"tool_calls": calls} if calls else {}),
            }
        )
        for call in calls:
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(turn)})
        if not calls:
            messages.append({"role": "user", "content": question})
    spans = [each["attributes"] for each in stage.spans()]
    return [each for each in spans if each.get("ltrain.rollout.id") == f"r{number}"]


def identity_fields(identity: Any) -> dict[str, Any]:
    return {
        name: getattr(identity, name)
        for name in ("run", "task", "wave", "sample", "rollout", "attempt", "mode")
    }


@pytest.mark.parametrize("question", [CHAT, COUNT])
def test_it(stage, model, question):
    spans = roll_out(stage, question, hash(question) % 1000, False)
    for each in spans:
        print(
            each["ltrain.continued"],
            each.get("ltrain.not_continued"),
            each["ltrain.prompt_token_count"],
            each["ltrain.response_token_count"],
        )
    assert 0
