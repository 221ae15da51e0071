"""A dataset is never replaced by one of another run or wave, or by other rows, unless asked for."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.otlp import insert_otlp
from tests.transforms.conftest import RECIPE, Scene
from tests.transforms.show.test_cli import ltrain

from ltrain_collector.store import Store
from ltrain_transforms.datasets import Dataset, build, list_datasets
from ltrain_transforms.datasets.location import dataset_folder
from ltrain_transforms.errors import DatasetExists, NoDataset
from ltrain_transforms.recipe import Recipe

KILLED = """
import os, signal, sys
from pathlib import Path
from ltrain_collector.store import Store
from ltrain_transforms.datasets import build
from ltrain_transforms.recipe import Recipe

def kill(phase, done, total):
    if phase == "rows":
        os.kill(os.getpid(), signal.SIGKILL)

folder = Path(sys.argv[1])
with Store.open(f"chdb://{folder}/store") as store:
    recipe = Recipe.load(folder / "ltrain.toml")
    build(store, recipe, folder / "out", wave=2, replace=True, progress=kill)
"""


def play(run: str, wave: int, mode: str = "train") -> Scene:
    """Return a wave of one group of two."""
    scene = Scene(run)
    for sample in range(2):
        rollout = scene.attempt(sample=sample, wave=wave, mode=mode)
        rollout.dispatch()
        rollout.llm()
        rollout.evaluate(float(sample))
        rollout.close()
    return scene


@pytest.fixture
def runs(store: Store) -> Store:
    """A store with waves 0 and 2 of run graph, and wave 0 of run graph-2."""
    for run, wave in (("graph", 0), ("graph", 2), ("graph-2", 0)):
        insert_otlp(store, play(run, wave).request())
    return store


def read_ids(home: Path) -> dict[str, str]:
    return {str(path.relative_to(home / "datasets")): name for path, name in list_datasets(home)}


def test_runs_waves_and_modes_have_their_own_folders(runs: Store, tmp_path: Path) -> None:
    runs.close()
    (tmp_path / "ltrain.toml").write_text(RECIPE)
    for options in (
        ("--run", "graph", "--wave", "2"),
        ("--run", "graph-2"),
        ("--run", "graph-2", "--wave", "0"),
        ("--run", "graph"),
        ("--run", "graph", "--mode", "all"),
        ("--run", "graph", "--wave", "2"),  # the same dataset again is no error
    ):
        done = ltrain(tmp_path, "build", *options)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
    ids = read_ids(tmp_path / ".ltrain")
    names = ["graph-2/train", "graph-2/train-0", "graph/all", "graph/train", "graph/train-2"]
    assert sorted(ids) == names
    shown = ltrain(tmp_path, "show", ids["graph/train-2"])
    assert ".ltrain/datasets/graph/train-2" in shown.stdout
    # what a draft of a killed build left is no dataset
    draft = tmp_path / ".ltrain" / "datasets" / "graph" / ".train.1-a.part"
    draft.mkdir()
    (draft / "manifest.json").write_text(json.dumps({"id": "draft"}))
    assert sorted(read_ids(tmp_path / ".ltrain")) == names


def test_another_dataset_is_replaced_only_if_asked_for(
    runs: Store, recipe: Recipe, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = build(runs, recipe, out, run="graph", wave=2)
    assert build(runs, recipe, out, run="graph", wave=2).id == first.id
    for run, wave in (("graph-2", None), ("graph", 0)):
        for update in (False, True):
            with pytest.raises(DatasetExists) as refused:
                build(runs, recipe, out, run=run, wave=wave, update=update)
            assert f"{out} holds dataset {first.id} (run graph, mode train, wave 2, 2 exec" in str(
                refused.value
            )
            assert "Add --replace" in str(refused.value)
            assert Dataset.open(out).id == first.id and Dataset.open(out).is_intact
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".out")] == []
    other = build(runs, recipe, out, run="graph-2", replace=True)
    assert Dataset.open(out).id == other.id != first.id
    insert_otlp(runs, play("graph-2", 1).request())
    with pytest.raises(DatasetExists):
        build(runs, recipe, out, run="graph-2")
    assert build(runs, recipe, out, run="graph-2", update=True).counts["executions"] == 4
    (out / "manifest.json").write_text("[]")
    with pytest.raises(DatasetExists, match=r"holds an unreadable manifest\.json"):
        build(runs, recipe, out, run="graph-2")


def test_a_killed_build_leaves_the_old_dataset(runs: Store, recipe: Recipe, tmp_path: Path) -> None:
    old = build(runs, recipe, tmp_path / "out", run="graph", wave=0)
    runs.close()
    (tmp_path / "ltrain.toml").write_text(RECIPE.replace("demo", "graph"))
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False)
    assert done.returncode == -signal.SIGKILL
    dataset = Dataset.open(tmp_path / "out")
    assert dataset.id == old.id and dataset.is_intact
    # a build that was killed between its two renames: the old dataset is put back, and counts
    os.rename(tmp_path / "out", tmp_path / ".out.999999999-ab.old")
    with (
        Store.open(f"chdb://{tmp_path}/store") as store,
        pytest.raises(DatasetExists, match=old.id),
    ):
        build(store, recipe, tmp_path / "out", run="graph", wave=2)
    assert Dataset.open(tmp_path / "out").id == old.id


def test_no_dataset_is_written_inside_another(runs: Store, recipe: Recipe, tmp_path: Path) -> None:
    build(runs, recipe, tmp_path / "graph", run="graph")
    with pytest.raises(NoDataset, match=r"graph is a dataset, so train cannot be written in it"):
        build(runs, recipe, tmp_path / "graph" / "train", run="graph")


@pytest.mark.parametrize("run", ["../../x", "..", ".", "/etc", "a/b", "a%2Fb", "ä \0", ".hidden"])
def test_no_run_name_leaves_the_folder(tmp_path: Path, run: str) -> None:
    folder = dataset_folder(tmp_path, run, "train", 0)
    assert folder.parent.parent == tmp_path / "datasets"
    assert folder.resolve() == folder.absolute(), "no part is .."
    folder.mkdir(parents=True)
    names = ["../../x", "..", ".", "/etc", "a/b", "a%2Fb", "ä \0", ".hidden"]
    assert len({dataset_folder(tmp_path, name, "train") for name in names}) == len(names)


def test_a_run_with_a_slash_is_built_and_found(scene: Any, store: Store, tmp_path: Path) -> None:
    insert_otlp(store, play("team/../graph", 0).request())
    store.close()
    (tmp_path / "ltrain.toml").write_text(RECIPE)
    done = ltrain(tmp_path, "build", "--run", "team/../graph")
    assert done.returncode == 0, done.stderr
    assert list(read_ids(tmp_path / ".ltrain")) == ["team%2F..%2Fgraph/train"]
