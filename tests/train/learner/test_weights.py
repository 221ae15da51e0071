"""The weight files of an export."""

import json
from pathlib import Path

import torch

from ltrain_train.learner.weights import write_weights


def test_tensors_that_are_not_finite_as_written_are_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({}))
    tensors = {
        "good": torch.tensor([1.0, -2.0]),
        "infinite": torch.tensor([1.0, float("inf")]),
        "overflows": torch.tensor([3.4e38]),  # above the largest number of bf16
    }
    bad = write_weights(tmp_path, tensors.items(), dtype="bf16", write=True)
    assert bad == ["infinite", "overflows"]
    assert write_weights(tmp_path, [("good", tensors["good"])], dtype="fp32", write=True) == []
