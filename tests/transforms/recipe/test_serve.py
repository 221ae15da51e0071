"""The settings of [serve] for a Tinker server, and the arguments that they become."""

from pathlib import Path
from typing import Any

import pytest

from ltrain_transforms.errors import BadRecipe
from ltrain_transforms.recipe import TINKER_KEY, Recipe

SECTIONS: dict[str, Any] = {
    "policy": [{"name": "sql"}],
    "reward": [{"name": "answer", "evaluation": "reward"}],
    "train": {"tinker": {"base_url": "http://127.0.0.1:9", "base_model": "Qwen/Qwen3-8B"}},
}


def recipe(policy: dict[str, Any] | None = None, **serve: Any) -> Recipe:
    policies = [{"name": "sql", **(policy or {})}]
    return Recipe.from_sections(SECTIONS | {"policy": policies, "serve": serve})


def test_the_server_of_the_trainer_samples() -> None:
    made = recipe(on="tinker", tool_parser="hermes", max_model_len=4096)
    arguments = made.serve.arguments(Path("/r"), "bfloat16", made.train)
    server = ["--on", "tinker", "--base-url", "http://127.0.0.1:9", "--base-model", "Qwen/Qwen3-8B"]
    assert arguments[:6] == server
    assert arguments[-3:] == ["--", "--tool-call-parser", "hermes"]
    assert arguments[8:10] == ["--max-model-len", "4096"]
    assert TINKER_KEY in made.secrets and not made.serve.starts_vllm


def test_vllm_samples_by_default() -> None:
    made = recipe(tool_parser="hermes")
    arguments = made.serve.arguments(Path("/r"), "bfloat16", made.train)
    assert "--on" not in arguments and "--enable-auto-tool-choice" in arguments
    assert TINKER_KEY not in made.secrets and made.serve.starts_vllm
    assert recipe(on="vllm").digest == recipe().digest != recipe(on="tinker").digest


@pytest.mark.parametrize(
    ("serve", "sentence"),
    [
        ({"upstream": "http://h"}, r"upstream: they are settings of vLLM"),
        ({"gpus": ["0"], "vllm": ["--seed"]}, r"gpus, vllm: they are settings of vLLM"),
        ({"publish": "merged"}, r'publish = "merged": they are settings of vLLM'),
        ({"on": "sglang"}, r"Unknown value 'sglang'. Choose from: tinker, vllm"),
    ],
)
def test_settings_of_vllm_are_refused_beside_tinker(serve: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRecipe, match=sentence):
        recipe(**{"on": "tinker", **serve})


def test_another_temperature_cannot_be_trained() -> None:
    warm = {"sampling": {"temperature": 0.7}}
    with pytest.raises(BadRecipe, match="reports log-probabilities at temperature 1 only"):
        recipe(warm, on="tinker")
    assert recipe(warm).serve.on == "vllm"
