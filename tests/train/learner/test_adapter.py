"""Adapters are written as they are trained, start another learner, and merge into their base."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from ltrain_train.errors import BadModel
from ltrain_train.learner import merge_adapter
from ltrain_train.learner.client import LearnerClient
from ltrain_train.learner.objective import Objective
from ltrain_train.policy import check_adapter
from ltrain_transforms.recipe import Train

Rows = list[dict[str, Any]]
TRAIN = Train(
    lora_rank=4,
    dtype="fp32",
    learning_rate=1e-2,
    steps_per_wave=2,
    drift_warning=1.0,  # the rows have random log-probabilities
    drift_limit=2.0,
)
OBJECTIVE = Objective.from_train(TRAIN)
PEFT = """
import sys
from peft import PeftModel
from transformers import AutoModelForCausalLM
base = AutoModelForCausalLM.from_pretrained(sys.argv[1])
PeftModel.from_pretrained(base, sys.argv[2]).merge_and_unload().save_pretrained(sys.argv[3])
"""


def flat(rows: list[list[float]]) -> list[float]:
    return [x for row in rows for x in row]


@pytest.mark.nightly
def test_two_ranks_export_the_adapter_that_was_trained(
    tiny: Path,
    tmp_path: Path,
    make_rows: Callable[..., Rows],
    write: Callable[[Rows], Path],
) -> None:
    samples = write(make_rows(8))
    with LearnerClient(TRAIN, tiny, directory=tmp_path, policy="tiny", ranks=2) as learner:
        learner.step(samples, OBJECTIVE, version=0)
        learner.export_adapter(tmp_path / "adapter")
        learner.export(tmp_path / "merged")
        expected = learner.log_probs(samples)
    check_adapter(tmp_path / "adapter", tiny)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (4, 8, "LORA")
    assert "model.layers.0.self_attn.q_proj" in config["target_modules"]
    matrices = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert {str(each.dtype) for each in matrices.values()} == {"torch.float32"}

    merge_adapter(tiny, tmp_path / "adapter", tmp_path / "merged-here")
    compare(tmp_path / "merged-here", tmp_path / "merged")
    subprocess.run(  # peft itself reads it
        [sys.executable, "-c", PEFT, tiny, tmp_path / "adapter", tmp_path / "by-peft"], check=True
    )
    compare(tmp_path / "by-peft", tmp_path / "merged")

    start: dict[str, Any] = {
        "directory": tmp_path,
        "policy": "tiny",
        "adapter": tmp_path / "adapter",
    }
    with LearnerClient(TRAIN, tiny, **start) as second:
        assert flat(second.log_probs(samples)) == pytest.approx(flat(expected), abs=1e-5)
        assert second.step(samples, OBJECTIVE, version=1).steps == 2


def compare(one: Path, other: Path) -> None:
    """Check that two models have the same weights up to rounding."""
    ours, theirs = (load_file(each / "model.safetensors") for each in (one, other))
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert float((tensor - theirs[name]).abs().max()) < 1e-6, name


def test_an_adapter_of_another_base_is_not_merged(tiny: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "lora_alpha": 8}')
    (adapter / "adapter_model.safetensors").write_bytes(b"\2" + b"\0" * 7 + b"{}")
    merge_adapter(tiny, adapter, tmp_path / "unchanged")  # an adapter without matrices
    compare(tmp_path / "unchanged", tiny)
    (adapter / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(BadModel, match="not a complete safetensors file"):
        merge_adapter(tiny, adapter, tmp_path / "out")
    assert not (tmp_path / "out").exists()
