"""`ltrain policy verify`: a version, its checkpoint and dataset, and the dataset built again."""

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from tests.damage import Damage, cut_in_half, damage_file, flip_a_bit
from tests.fork_server import ltrain_command
from tests.otlp import insert_otlp, open_empty_store
from tests.train.policy.test_versions import write_model
from tests.train.runs.journals import new_journal
from tests.transforms.conftest import RECIPE, Scene
from tests.transforms.datasets.test_lineage import add_group

from ltrain_collector.store import Store
from ltrain_instrument.instrumentors import Finding, State
from ltrain_train.learner.checkpoint import CheckpointRecord, write_record
from ltrain_train.policy import Policies
from ltrain_train.updates.verification import verify_version
from ltrain_transforms.datasets import build, dataset_folder
from ltrain_transforms.policy_lineage import Lineage, write_ledger
from ltrain_transforms.recipe import Recipe


def write_trained_home(folder: Path) -> Path:
    """Return a home with a store, a run's journal, and version 1 of a policy that it trained."""
    home = folder / "home"
    policies = Policies(home)
    policies.register("sql", write_model(folder / "model"))
    scene = Scene()
    rollouts = add_group(scene, (0, 0, 0, 0))
    recipe = Recipe.model_validate(tomllib.loads(RECIPE))
    with open_empty_store(home / "store") as store:
        insert_otlp(store, scene.request())
        lineage = Lineage.read(policies.directory / "sql", 0)
        out = dataset_folder(home, "demo", "train", 0)
        dataset = build(store, recipe, out, run="demo", wave=0, lineage=lineage)
    checkpoint = new_journal(home / "runs" / "demo").of("sql").checkpoints / "1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "optim.pt").write_bytes(b"0123456789")
    write_record(checkpoint, CheckpointRecord(1, 1, "base", 16, 32, 1, recipe.digest, "sql"))
    draft = write_model(folder / "draft", fill=1)
    write_ledger(draft, rollouts)
    policies.register_files(
        "sql", draft, parent=0, dataset=dataset.id, recipe=recipe.digest, base=0,
        checkpoint=checkpoint,
    )  # fmt: skip
    return home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = write_trained_home(tmp_path)
    monkeypatch.setenv("LTRAIN_HOME", str(home))
    return home


def verify(home: Path, identifier: str = "sql@1", *, retrain: bool = False) -> dict[str, Finding]:
    found = verify_version(identifier, f"chdb://{home / 'store'}", retrain=retrain)
    return {finding.name: finding for finding in found}


def test_a_sound_version_equals_a_new_build(home: Path) -> None:
    before = sorted(home.rglob("datasets/**/*"))
    found = verify(home)
    assert list(found) == ["sql@1", "checkpoint", "dataset", "build"]
    assert {finding.state for finding in found.values()} == {State.OK}
    assert found["sql@1"].detail.startswith("4 files of ")
    assert found["checkpoint"].detail.endswith("/1: 1 file, as written")
    assert found["build"].detail.startswith(f"chdb://{home}/store gives the same rows")
    assert sorted(home.rglob("datasets/**/*")) == before
    found = verify(home, "sql@0")
    assert found["dataset"].detail == "sql@0 was not trained on a dataset"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("damage", [flip_a_bit, cut_in_half])
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("sql@1", "policies/sql/v1/model.safetensors"),
        ("sql@1", "policies/sql/v1/rollouts.parquet"),
        ("checkpoint", "runs/demo/checkpoints/sql/1/optim.pt"),
        ("dataset", "datasets/demo/train-0/samples/00000.parquet"),
    ],
)
def test_a_damaged_file_is_named(home: Path, name: str, file: str, damage: Damage) -> None:
    damage_file(home / file, damage)
    found = verify(home)
    assert [each.name for each in found.values() if each.state is State.FAULT] == [name]
    assert "is damaged: " in found[name].detail
    assert Path(file).name in found[name].detail


def test_executions_that_began_later_are_left_out(home: Path) -> None:
    scene = Scene()
    add_group(scene, (0, 0, 0, 0), task="t2")
    with Store.open(f"chdb://{home / 'store'}") as store:
        insert_otlp(store, scene.request())
    assert verify(home)["build"].state is State.OK


def test_later_records_of_an_execution_give_another_dataset(home: Path) -> None:
    scene = Scene()
    add_group(scene, (0, 0, 0, 0))  # a span that arrives twice is one span
    scene.attempts[1].evaluate(7.0)
    with Store.open(f"chdb://{home / 'store'}") as store:
        insert_otlp(store, scene.request())
    build_again = verify(home)["build"]
    assert build_again.state is State.FAULT
    assert "rewards has other rows" in build_again.detail
    assert "the store received spans until" not in build_again.detail


def test_a_dataset_that_was_removed_is_noted(home: Path) -> None:
    shutil.rmtree(home / "datasets")
    found = verify(home)
    assert (found["dataset"].state, "build" in found) == (State.NOTE, False)


def test_the_command_ends_with_status_1_when_something_is_damaged(home: Path) -> None:
    def run() -> subprocess.CompletedProcess[str]:
        command = [ltrain_command(), "policy", "verify", "sql@1"]
        options = ["--store", f"chdb://{home / 'store'}"]
        return subprocess.run([*command, *options], capture_output=True, text=True, check=False)

    done = run()
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "all is well"), done.stderr
    damage_file(home / "policies" / "sql" / "v1" / "tokenizer.json", flip_a_bit)
    done = run()
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "1 fault"), done.stderr
    assert "v1' is damaged: tokenizer.json has the SHA-256" in done.stdout
