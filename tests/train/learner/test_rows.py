"""Rows outside the prefix tree train as in plain torch: packed, or alone if a pack mixes them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.train.tiny import SIZES, write_tokenizer

from ltrain_train.learner.client import LearnerClient
from ltrain_train.learner.objective import Objective
from ltrain_transforms.recipe import Train

hugging_face: Any = transformers  # its classes have no types
Rows = list[dict[str, Any]]
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LINEAR = {
    **{"linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_conv_kernel_dim": 4},
    **{"linear_num_value_heads": 4, "linear_value_head_dim": 16},
    **{"layer_types": ["linear_attention", "full_attention"]},
    **{"shared_expert_intermediate_size": 32},
}
TRAIN = Train(
    lora_rank=0,
    dtype="fp32",
    learning_rate=1e-3,
    tokens_per_micro_batch=128,
    drift_warning=1.0,  # the rows have random log-probabilities
    drift_limit=20.0,
)


def write_model(folder: Path, architecture: str, options: dict[str, Any]) -> None:
    """Write a tiny random model of a class of transformers."""
    tokens = len(write_tokenizer(folder))
    torch.manual_seed(0)
    config = getattr(hugging_face, f"{architecture}Config")(
        vocab_size=tokens, **SIZES | options, initializer_range=0.1, tie_word_embeddings=False
    )
    hugging_face.AutoModelForCausalLM.from_config(config).save_pretrained(folder)


@pytest.mark.parametrize(
    ("architecture", "options", "ranks"),
    [
        ("Qwen3Moe", EXPERTS, 1),
        ("Qwen3Next", EXPERTS | LINEAR, 1),
        ("Llama", {}, 2),
        pytest.param("Qwen3Moe", EXPERTS, 2, marks=pytest.mark.nightly),
    ],
)
def test_rows_train_as_in_plain_torch(
    architecture: str,
    options: dict[str, Any],
    ranks: int,
    make_rows: Callable[..., Rows],
    write: Callable[[Rows], Path],
    reference: Callable[..., dict[str, Any]],
    tmp_path: Path,
) -> None:
    write_model(tmp_path / "model", architecture, options)
    samples = write(make_rows(12, seed=5))
    untrained = reference(tmp_path / "model", samples)
    expected = reference(tmp_path / "model", samples, steps=1, lr=1e-3)
    train = TRAIN.model_copy(update={"sequence_ranks": ranks})
    with LearnerClient(
        train, tmp_path / "model", directory=tmp_path / "run", policy="rows", ranks=ranks
    ) as learner:
        before = learner.log_probs(samples)
        report = learner.step(samples, Objective.from_train(TRAIN), version=0)
    for row, expected_row in zip(before, untrained["log_probs"], strict=True):
        assert row == pytest.approx(expected_row, abs=1e-5)
    assert report.metrics["loss"] == pytest.approx(expected["loss"][0], abs=1e-6)
    assert report.metrics["grad_norm"] == pytest.approx(expected["grad_norm"][0], rel=1e-4)


def test_packed_rows_train_in_bf16(
    make_rows: Callable[..., Rows],
    write: Callable[[Rows], Path],
    reference: Callable[..., dict[str, Any]],
    tmp_path: Path,
) -> None:
    write_model(tmp_path / "model", "Qwen3Moe", EXPERTS)
    samples = write(make_rows(12, seed=5))
    expected = reference(tmp_path / "model", samples, steps=1, lr=1e-3)
    train = TRAIN.model_copy(update={"dtype": "bf16"})
    with LearnerClient(train, tmp_path / "model", directory=tmp_path, policy="rows") as learner:
        report = learner.step(samples, Objective.from_train(train), version=0)
    assert report.metrics["loss"] == pytest.approx(expected["loss"][0], abs=0.02)
    assert report.metrics["grad_norm"] == pytest.approx(expected["grad_norm"][0], rel=0.1)
    assert 0 < report.metrics["entropy"] < 10
