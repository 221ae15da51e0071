"""Each example is trained once with the real model, as its page says: `make test-examples`.

An example is a folder of `examples/` with a recipe `ltrain.toml` that has tasks.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.learn import environment

from ltrain_train.loop import Journal
from ltrain_train.policy import Policies
from ltrain_transforms.recipe import Recipe

ROOT = Path(__file__).parents[2]
MODEL = ROOT / ".ltrain" / "models" / "smollm2"
ELSEWHERE = {"air": "make bench-air trains its tiny policy"}
"""Examples that are not trained here, and why."""
HELD_OUT = 24
"""Held-out tasks, of all in the file: they are scored before and after the update."""


def examples() -> list[str]:
    recipes = sorted((ROOT / "examples").glob("*/ltrain.toml"))
    names = [file.parent.name for file in recipes if Recipe.load(file).rollout is not None]
    return [name for name in names if name not in ELSEWHERE]


@pytest.fixture
def home() -> Iterator[Path]:
    """Yield a new folder for `.ltrain`, whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="le-", dir="/tmp") as folder:
        yield Path(folder)


def held_out(recipe: Path, folder: Path) -> Path:
    """Write some of the recipe's held-out tasks, from all parts of the file."""
    rollout = Recipe.load(recipe).rollout
    assert rollout is not None and rollout.validation is not None, f"{recipe}: no held-out tasks"
    lines = (recipe.parent / rollout.validation).read_text().splitlines(keepends=True)
    chosen = lines[:: max(1, len(lines) // HELD_OUT)][:HELD_OUT]
    file = folder / "held-out.jsonl"
    file.write_text("".join(chosen))
    return file


@pytest.mark.parametrize("name", examples())
def test_an_example_trains_and_is_scored(name: str, home: Path, tmp_path: Path) -> None:
    recipe = ROOT / "examples" / name / "ltrain.toml"
    tasks = held_out(recipe, tmp_path)
    command = [sys.executable, "-m", "ltrain", "run", str(recipe), "--from-clickhouse"]
    options = ["--model", str(MODEL), "--updates", "1", "--validation", str(tasks), "--json"]
    done = subprocess.run(
        [*command, *options], env=environment(home), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    journal = Journal.load(home / ".ltrain/runs" / str(Recipe.load(recipe).source.run))
    assert journal is not None and journal.finished
    published = {wave.policy: wave.published for wave in journal.waves if wave.mode == "train"}
    trained = [policy for policy, version in published.items() if version == 1]
    assert trained, f"no policy has a new version: {done.stdout}"
    for policy in trained:
        assert 1 in Policies(home / ".ltrain").versions(policy)
        scores = [wave for wave in journal.of(policy).waves if wave.mode == "val"]
        assert [wave.version for wave in scores] == [0, 1]
        for wave in scores:
            assert len(wave.tasks) == len(tasks.read_text().splitlines())
            assert wave.score is not None and 0 <= wave.score <= 1
