"""A version may have its weights at a Tinker server, which `tinker.json` names."""

import json
from pathlib import Path

import pytest
from tests.model_files import write_model_files
from tests.train.policy.test_artifact import WEIGHTS, write_adapter

from ltrain_train.errors import BadModel
from ltrain_train.policy import Policies, TinkerWeights, read_tinker_weights


def write_base(folder: Path) -> Path:
    """Write a model directory without weight files."""
    write_model_files(folder, WEIGHTS, 0)
    (folder / "model.safetensors").unlink()
    TinkerWeights(base_model="Qwen/Qwen3-8B").write(folder)
    return folder


def test_a_model_without_weight_files_is_a_version_with_adapters(tmp_path: Path) -> None:
    policies = Policies(tmp_path / "home")
    policies.register("sql", write_base(tmp_path / "model"))
    adapter = write_adapter(tmp_path / "adapter")
    weights = TinkerWeights(
        base_model="Qwen/Qwen3-8B", sampler="tinker://run/sampler/1", state="tinker://run/state/1"
    )
    weights.write(adapter)
    assert policies.add("sql", adapter) == 1
    assert read_tinker_weights(policies.verify("sql", 1)) == weights
    assert read_tinker_weights(policies.verify("sql", 0)) == TinkerWeights(
        base_model="Qwen/Qwen3-8B"
    )
    assert json.loads((adapter / "tinker.json").read_text()) == weights.model_dump()
    assert "tinker.json" in policies.read_version("sql", 1).files


def test_models_at_the_server_have_different_digests(tmp_path: Path) -> None:
    policies, folder = Policies(tmp_path / "home"), write_base(tmp_path / "model")
    policies.register("one", folder)
    TinkerWeights(base_model="Qwen/Qwen3-32B").write(folder)
    policies.register("other", folder)
    one, other = (policies.read_version(name, 0).base_digests() for name in ("one", "other"))
    assert one["model"] != other["model"]
    assert one["tokenizer"] == other["tokenizer"]


def test_a_directory_without_a_file_names_no_weights(tmp_path: Path) -> None:
    assert read_tinker_weights(tmp_path) is None


@pytest.mark.parametrize(
    "text", ["{}", "[]", '{"base_model": ""}', '{"base_model": "m", "sampler": "/etc/passwd"}']
)
def test_a_damaged_file_is_an_error(tmp_path: Path, text: str) -> None:
    folder = write_base(tmp_path / "model")
    (folder / "tinker.json").write_text(text)
    with pytest.raises(BadModel, match=r"tinker\.json': .*It names the base model of the Tinker"):
        Policies(tmp_path / "home").register("sql", folder)
