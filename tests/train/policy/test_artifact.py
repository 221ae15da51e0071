"""A version is full weights, an adapter of such weights, or a prompt; each is checked."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.model_files import write_model_files, write_tensors

from ltrain_train.errors import BadModel, PolicyExists
from ltrain_train.policy import Policies
from ltrain_train.policy.artifact import find_artifact, read_adapter_config, read_prompt
from ltrain_transforms.policy_file import PolicyVersion

Shapes = dict[str, tuple[int, ...]]
WEIGHTS: Shapes = {"m.q.weight": (6, 4), "m.up.weight": (8, 4), "m.norm.weight": (4,)}
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q"], "bias": "none"}


def write_model(folder: Path, fill: int = 0) -> Path:
    return write_model_files(folder, WEIGHTS, fill)


def matrices(module: str = "m.q", inputs: int = 4, outputs: int = 6, rank: int = 2) -> Shapes:
    name = f"base_model.model.{module}"
    return {f"{name}.lora_A.weight": (rank, inputs), f"{name}.lora_B.weight": (outputs, rank)}


def write_adapter(folder: Path, shapes: Shapes | None = None, **config: Any) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    write_tensors(folder / "adapter_model.safetensors", shapes or matrices())
    return folder


@pytest.fixture
def policies(tmp_path: Path) -> Policies:
    policies = Policies(tmp_path / "home")
    policies.register("sql", write_model(tmp_path / "model"))
    return policies


def test_an_adapter_is_a_version_beside_its_base(policies: Policies, tmp_path: Path) -> None:
    version = policies.add("sql", write_adapter(tmp_path / "adapter"))
    manifest = policies.read_version("sql", version)
    assert (version, manifest.artifact, manifest.parent, manifest.base) == (1, "adapter", 0, 0)
    assert policies.verify("sql", 1) == policies.path("sql", 1)
    assert policies.weights_path("sql", 1) == policies.path("sql", 0)
    assert set(manifest.files) == {"adapter_config.json", "adapter_model.safetensors"}
    child = policies.add("sql", write_adapter(tmp_path / "child"), parent=1)
    assert policies.read_version("sql", child).weights_version == 0
    full = policies.add("sql", write_model(tmp_path / "full", fill=3), parent=1)
    assert policies.read_version("sql", full).artifact == "weights"
    assert policies.weights_path("sql", full) == policies.path("sql", full)
    of_full = policies.add("sql", write_adapter(tmp_path / "of-full"), parent=full)
    assert policies.read_version("sql", of_full).base == full


def test_a_base_that_is_incomplete_makes_its_adapter_unusable(
    policies: Policies, tmp_path: Path
) -> None:
    version = policies.add("sql", write_adapter(tmp_path / "adapter"))
    weights = policies.path("sql", 0) / "model.safetensors"
    weights.chmod(0o644)
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(BadModel, match=r"v0' is damaged: model\.safetensors has"):
        policies.verify("sql", version)


@pytest.mark.parametrize(
    ("shapes", "sentence"),
    [
        (matrices("m.k"), r"adapts m\.k, which '.*v0' does not have"),
        (matrices("m.norm"), r"adapts m\.norm, which is no matrix"),
        (matrices(inputs=5), r"must be \[2, 4\] and \[6, 2\]: .* another base or rank"),
        (matrices(rank=3), r"must be \[2, 4\] and \[6, 2\]: .* another base or rank"),
        ({"base_model.model.m.q.lora_A.weight": (2, 4)}, r"lacks tensor .*lora_B\.weight"),
        (matrices() | {"m.q.weight": (6, 4)}, r"has an unknown tensor|lacks tensor"),
    ],
)
def test_an_adapter_of_another_base_or_rank_is_refused(
    policies: Policies, tmp_path: Path, shapes: Shapes, sentence: str
) -> None:
    adapter = write_adapter(tmp_path / "adapter", shapes)
    with pytest.raises(BadModel, match=sentence):
        policies.add("sql", adapter)
    assert policies.versions("sql") == [0]


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"peft_type": "IA3"}, "peft_type: .*Plain LoRA adapters can be served"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"q": 8}}, "rank_pattern"),
        ({"r": 0}, "r: "),
    ],
)
def test_an_adapter_that_is_not_plain_lora_is_refused(
    policies: Policies, tmp_path: Path, config: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadModel, match=sentence):
        policies.add("sql", write_adapter(tmp_path / "adapter", **config))


def test_the_scale_of_an_adapter(tmp_path: Path) -> None:
    plain = write_adapter(tmp_path / "plain", r=4, lora_alpha=8)
    stabilized = write_adapter(tmp_path / "stabilized", r=4, lora_alpha=8, use_rslora=True)
    assert read_adapter_config(plain).scale == 2.0
    assert read_adapter_config(stabilized).scale == 4.0


def test_an_adapter_needs_a_registered_model(tmp_path: Path) -> None:
    policies = Policies(tmp_path / "home")
    with pytest.raises(BadModel, match="Register the model as version 0 first"):
        policies.register("sql", write_adapter(tmp_path / "adapter"))
    assert policies.names() == []


def test_prompts_are_versions_too(tmp_path: Path) -> None:
    policies = Policies(tmp_path / "home")
    text = tmp_path / "greeting.md"
    text.write_text("Answer in one word.\n")
    assert policies.register("greeting", text) == policies.register("greeting", text) == 0
    text.write_text("Answer in two words.\n")
    with pytest.raises(PolicyExists):
        policies.register("greeting", text)
    assert policies.add("greeting", text) == 1
    assert find_artifact(policies.verify("greeting", 1)) == "prompt"
    assert read_prompt(policies.path("greeting", 1) / "prompt.txt") == "Answer in two words.\n"
    assert policies.export("greeting", 1, tmp_path / "out") == len("Answer in two words.\n")
    with pytest.raises(BadModel, match="either prompts, or weights and their adapters"):
        policies.add("greeting", write_model(tmp_path / "model"))
    for content, sentence in ((b" \n", "is empty"), (b"\xff", "cannot be read as UTF-8")):
        text.write_bytes(content)
        with pytest.raises(BadModel, match=sentence):
            policies.add("greeting", text)
    assert policies.versions("greeting") == [0, 1]
    assert not list((policies.directory / "greeting").glob(".draft*"))


def test_a_version_of_older_manifests_is_full_weights() -> None:
    manifest = PolicyVersion.model_validate(
        {"policy": "sql", "version": 3, "base": 0, "created": 0.0, "files": {}}
    )
    assert (manifest.artifact, manifest.weights_version) == ("weights", 3)
