"""Versions of policies: complete or absent, immutable, and one of them current."""

import json
import stat
from pathlib import Path

import pytest
from tests.damage import Damage, cut_in_half, damage_file, flip_a_bit
from tests.model_files import write_model_files

from ltrain_train.errors import BadModel, PolicyExists, UnknownVersion
from ltrain_train.policy.prompts import current_prompts
from ltrain_train.policy.versions import Policies
from ltrain_transforms.policy_file import read_base_digests


def write_model(directory: Path, fill: int = 0, **shapes: int) -> Path:
    """Write a fake model: config, tokenizer and a tensor of bytes for each shape."""
    sizes = {name: (size,) for name, size in (shapes or {"w": 4}).items()}
    return write_model_files(directory, sizes, fill)


@pytest.fixture
def policies(tmp_path: Path) -> Policies:
    policies = Policies(tmp_path / "home")
    policies.register("sql", write_model(tmp_path / "model"))
    return policies


def publish(policies: Policies, directory: Path) -> int:
    return policies.register_files("sql", directory, parent=0, dataset="d1", recipe="r1")


def test_a_model_becomes_version_0(policies: Policies, tmp_path: Path) -> None:
    assert (policies.names(), policies.versions("sql")) == (["sql"], [0])
    assert (policies.latest("sql"), policies.current("sql")) == (0, 0)
    path = policies.path("sql", 0)
    assert path == tmp_path / "home" / "policies" / "sql" / "v0"
    names = {file.name for file in path.iterdir()}
    assert names == {"config.json", "tokenizer.json", "model.safetensors", "policy.json"}
    assert stat.S_IMODE((path / "model.safetensors").stat().st_mode) == 0o444
    (tmp_path / "model" / "config.json").write_text("changed")
    assert (path / "config.json").read_text() == "{}"


def test_a_version_is_never_moved_into_a_folder_that_exists(
    policies: Policies, tmp_path: Path
) -> None:
    half_written = policies.directory / "sql" / "v1"
    half_written.mkdir()
    (half_written / "config.json").write_text("{}")
    with pytest.raises(PolicyExists, match=r"v1' exists already.* half-written: remove it"):
        publish(policies, write_model(tmp_path / "new"))
    assert [file.name for file in half_written.iterdir()] == ["config.json"]
    assert policies.versions("sql") == [0]


def test_the_digests_of_a_base_are_those_of_model_tokenizer_and_template(
    policies: Policies, tmp_path: Path
) -> None:
    digests = read_base_digests(policies.directory / "sql")
    assert digests.keys() == {"model", "tokenizer"}
    model = write_model(tmp_path / "other", fill=9)
    (model / "chat_template.jinja").write_text("{{ messages }}")
    (model / "generation_config.json").write_text("{}")
    policies.register("other", model)
    changed = read_base_digests(policies.directory / "other")
    assert changed.keys() == {"model", "tokenizer", "template"}
    assert changed["tokenizer"] == digests["tokenizer"]
    assert changed["model"] != digests["model"]
    assert read_base_digests(policies.directory / "absent") == {}


def test_the_same_model_can_be_registered_again_but_not_another(
    policies: Policies, tmp_path: Path
) -> None:
    assert policies.register("sql", tmp_path / "model") == 0
    other = write_model(tmp_path / "other", fill=9)
    with pytest.raises(PolicyExists, match=r"made from another model"):
        policies.register("sql", other)


def test_a_finished_directory_becomes_the_next_version(policies: Policies, tmp_path: Path) -> None:
    draft = policies.draft("sql")
    assert not draft.exists()
    write_model(draft, fill=1)
    assert publish(policies, draft) == 1
    assert not draft.exists()
    assert (policies.versions("sql"), policies.current("sql")) == ([0, 1], 0)
    manifest = policies.read_version("sql", 1)
    assert (manifest.policy, manifest.version, manifest.parent) == ("sql", 1, 0)
    assert (manifest.dataset, manifest.recipe) == ("d1", "r1")
    assert set(manifest.files) == {"config.json", "tokenizer.json", "model.safetensors"}
    assert manifest.digest != policies.read_version("sql", 0).digest
    policies.promote("sql", 1)
    assert policies.current("sql") == 1


@pytest.mark.parametrize(
    "checkpoint",
    [
        "runs",
        "runs/demo/checkpoints",
        "runs/demo/checkpoints/last",
        "runs/demo/checkpoints/1/deeper",
        "runs/demo/other/1",
        "policies/demo/checkpoints/1",
        "runs/demo/checkpoints/../../../precious/1",
        "../outside",
        "runs/link/checkpoints/1",
        "{home}/runs/demo/checkpoints/1",
        "",
    ],
)
def test_a_checkpoint_outside_the_runs_is_neither_loaded_nor_removed(
    policies: Policies, tmp_path: Path, checkpoint: str
) -> None:
    home = policies.directory.parent
    for folder in ("runs/demo/checkpoints/1/deeper", "policies/demo/checkpoints/1", "precious/1"):
        (home / folder).mkdir(parents=True)
    (tmp_path / "outside" / "checkpoints" / "1").mkdir(parents=True)
    (home / "runs" / "link").symlink_to(tmp_path / "outside")
    before = sorted(path for path in tmp_path.rglob("*") if path.is_dir())
    draft = write_model(tmp_path / "draft", fill=1)
    policies.register_files("sql", draft, parent=0, dataset="d1", recipe="r1", base=0)
    manifest = policies.path("sql", 1) / "policy.json"
    content = json.loads(manifest.read_text())
    content |= {"checkpoint": checkpoint.format(home=home), "sha256": None}
    manifest.unlink()
    manifest.write_text(json.dumps(content))
    with pytest.raises(BadModel, match=r"is not a folder runs/<run>/checkpoints/\[<policy>/"):
        policies.find_checkpoint("sql", 1)
    policies.remove("sql", 1)
    with pytest.raises(BadModel, match=r"Version 1 of 'sql' names the checkpoint"):
        policies.sweep("sql")
    assert [path for path in before if not path.is_dir()] == []
    with pytest.raises(BadModel, match="which is not a folder"):
        policies.register_files(
            "sql", write_model(tmp_path / "next"), parent=0, dataset="d", recipe="r",
            checkpoint=home / "checkpoints",
        )  # fmt: skip


def test_the_runs_may_be_on_another_disk(policies: Policies, tmp_path: Path) -> None:
    checkpoint = tmp_path / "big" / "demo" / "checkpoints" / "1"
    checkpoint.mkdir(parents=True)
    home = policies.directory.parent
    (home / "runs").symlink_to(tmp_path / "big")
    named = home / "runs" / "demo" / "checkpoints" / "1"
    draft = write_model(tmp_path / "draft")
    policies.register_files(
        "sql", draft, parent=0, dataset="d", recipe="r", base=0, checkpoint=named
    )
    assert policies.find_checkpoint("sql", 1) == (0, named)
    policies.remove("sql", 1)
    policies.sweep("sql")
    assert not checkpoint.exists()


def test_an_incomplete_directory_never_becomes_a_version(
    policies: Policies, tmp_path: Path
) -> None:
    draft = write_model(tmp_path / "draft")
    weights = draft / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(BadModel, match=r"not a complete safetensors file"):
        publish(policies, draft)
    assert policies.versions("sql") == [0]
    assert draft.exists()


@pytest.mark.parametrize(
    ("shapes", "sentence"),
    [
        ({"v": 4}, "has an unknown tensor v"),
        ({"w": 4, "v": 1}, "has an unknown tensor v"),
        ({"w": 5}, r"has w of shape \[5\]; .* has \[4\]"),
    ],
)
def test_weights_of_another_model_do_not_fit(
    policies: Policies, tmp_path: Path, shapes: dict[str, int], sentence: str
) -> None:
    with pytest.raises(BadModel, match=sentence):
        publish(policies, write_model(tmp_path / "draft", **shapes))


def test_a_tied_output_layer_may_be_omitted(policies: Policies, tmp_path: Path) -> None:
    assert publish(policies, write_model(tmp_path / "a", **{"w": 4, "lm_head.weight": 4})) == 1
    assert publish(policies, write_model(tmp_path / "b")) == 2


def test_without_a_current_version_the_first_is_current_or_the_command_is_named(
    policies: Policies, tmp_path: Path
) -> None:
    (policies.directory / "sql" / "current").unlink()  # the registration was killed before it
    assert policies.current("sql") == 0
    publish(policies, write_model(tmp_path / "draft"))
    assert policies.find_current("sql") is None
    with pytest.raises(
        UnknownVersion, match=r"missing or damaged. Run `ltrain policy use sql@1`, or .* 0, 1\."
    ):
        policies.current("sql")
    (policies.directory / "sql" / "current").write_text("half a li")
    assert policies.find_current("sql") is None
    policies.promote("sql", 1)
    assert policies.current("sql") == 1


def test_unknown_policies_and_versions_are_reported(policies: Policies) -> None:
    with pytest.raises(UnknownVersion, match=r"Unknown policy 'other'. Policies: sql\."):
        policies.latest("other")
    with pytest.raises(UnknownVersion, match=r"no version 3. Choose from: 0"):
        policies.path("sql", 3)
    with pytest.raises(BadModel, match=r"'../x' is not a valid policy name"):
        policies.versions("../x")


def test_a_half_written_version_is_not_listed(policies: Policies) -> None:
    (policies.directory / "sql" / "v1").mkdir()
    assert policies.versions("sql") == [0]
    with pytest.raises(UnknownVersion, match=r"half-written: it has no policy.json. Remove it"):
        policies.path("sql", 1)
    with pytest.raises(UnknownVersion, match=r"half-written"):
        policies.promote("sql", 1)


def test_a_version_without_one_of_its_files_is_not_served(
    policies: Policies, tmp_path: Path
) -> None:
    publish(policies, write_model(tmp_path / "draft"))
    (policies.path("sql", 1) / "tokenizer.json").unlink()
    with pytest.raises(BadModel, match=r"is damaged: tokenizer.json is missing, expected 2 bytes"):
        policies.verify("sql", 1)
    assert policies.verify("sql", 0) == policies.path("sql", 0)


@pytest.mark.parametrize("damage", [flip_a_bit, cut_in_half])
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_damaged_version_is_neither_served_nor_exported(
    policies: Policies, tmp_path: Path, damage: Damage, name: str
) -> None:
    publish(policies, write_model(tmp_path / "draft"))
    damage_file(policies.path("sql", 1) / name, damage)
    remedy = r"`ltrain policy use sql@N`; other versions: 0\."
    with pytest.raises(BadModel, match=rf"v1' is damaged: {name} has (?s:.*){remedy}"):
        policies.verify("sql", 1)
    with pytest.raises(BadModel, match=rf"v1' is damaged: {name} has"):
        policies.export("sql", 1, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("damage", [flip_a_bit, cut_in_half])
def test_a_damaged_prompt_is_not_served(policies: Policies, tmp_path: Path, damage: Damage) -> None:
    (tmp_path / "greeting.txt").write_text("Greet the user.")
    policies.register("greeting", tmp_path / "greeting.txt")
    assert current_prompts(policies)["greeting"].version == 0
    damage_file(policies.path("greeting", 0) / "prompt.txt", damage)
    with pytest.raises(BadModel, match=r"is damaged: prompt\.txt has .* other versions: none\."):
        current_prompts(policies)


def test_a_cut_manifest_is_named(policies: Policies) -> None:
    damage_file(policies.path("sql", 0) / "policy.json", cut_in_half)
    with pytest.raises(BadModel, match=r"v0/policy\.json' is damaged: .* Restore the file"):
        policies.verify("sql", 0)


def test_each_flipped_bit_of_a_manifest_is_named_or_changes_nothing(policies: Policies) -> None:
    file = policies.path("sql", 0) / "policy.json"
    content, written = file.read_bytes(), policies.read_version("sql", 0)
    file.unlink()
    named = 0
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        try:
            assert policies.read_version("sql", 0) == written
        except BadModel as error:
            named += "v0/policy.json' is damaged: " in str(error)
    assert named > 6 * len(content)  # the others are in spaces, and in the key of the digest


def test_a_manifest_of_another_program_has_no_digest(policies: Policies) -> None:
    file = policies.path("sql", 0) / "policy.json"
    written = policies.read_version("sql", 0)
    content = json.loads(file.read_bytes())
    assert content.pop("sha256")
    file.unlink()
    file.write_text(json.dumps({**content, "created": 1.5}))
    assert policies.read_version("sql", 0) == written.model_copy(update={"created": 1.5})


def test_drafts_of_dead_processes_are_removed(policies: Policies) -> None:
    folder = policies.directory / "sql"
    own = policies.draft("sql")
    own.mkdir()
    dead = folder / ".draft.999999999-0badcafe.part"
    dead.mkdir()
    policies.draft("sql")
    assert (dead.exists(), own.exists()) == (False, True)


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ("config.json", "has no config.json. Name a directory in Hugging Face layout"),
        ("tokenizer.json", "has no tokenizer.json"),
        ("model.safetensors", "has no weights: there is no \\*.safetensors file"),
    ],
)
def test_a_directory_without_a_model_is_refused(
    tmp_path: Path, missing: str, sentence: str
) -> None:
    model = write_model(tmp_path / "model")
    (model / missing).unlink()
    with pytest.raises(BadModel, match=sentence):
        Policies(tmp_path / "home").register("sql", model)
    with pytest.raises(BadModel, match=r"There is no model directory"):
        Policies(tmp_path / "home").register("sql", tmp_path / "nowhere")
    assert Policies(tmp_path / "home").names() == []


def test_a_model_that_is_not_needed_must_exist_too(tmp_path: Path) -> None:
    policies = Policies(tmp_path / "home")
    model = write_model(tmp_path / "model")
    policies.register_new("sql", model)
    policies.register_new("sql", write_model(tmp_path / "other", fill=1))  # it is not read
    assert policies.versions("sql") == [0]
    with pytest.raises(BadModel, match=r"no model .*nowhere'\. .* Policy 'sql' has versions"):
        policies.register_new("sql", tmp_path / "nowhere")


@pytest.mark.parametrize("has_versions", [False, True])
def test_a_name_of_a_hub_is_refused_with_the_command_that_downloads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_versions: bool
) -> None:
    policies = Policies(tmp_path / "home")
    if has_versions:
        policies.register("sql", write_model(tmp_path / "model"))
    monkeypatch.chdir(tmp_path)
    command = "hf download Qwen/Qwen3-0.6B --local-dir models/Qwen3-0.6B"
    with pytest.raises(BadModel, match=f"no model directory 'Qwen/Qwen3-0.6B'.*`{command}`"):
        policies.register_new("sql", Path("Qwen/Qwen3-0.6B"))
    with pytest.raises(BadModel, match=f"`{command}`"):  # in the folder of a recipe
        policies.register_new("sql", tmp_path / "Qwen" / "Qwen3-0.6B")
    (tmp_path / "models").mkdir()
    with pytest.raises(BadModel) as error:  # a mistyped path
        policies.register_new("sql", Path("models/Qwen3"))
    assert "hf download" not in str(error.value)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    index = {"weight_map": {"w": "model.safetensors", "v": "model-2.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadModel, match=r"lacks v, which its model.safetensors.index.json lists"):
        Policies(tmp_path / "home").register("sql", model)
