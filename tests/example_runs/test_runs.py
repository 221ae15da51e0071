"""Each example is trained once with the real model, as its page says: `make test-examples`.

An example is a folder of `examples/` with a recipe `ltrain.toml` that has tasks.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import pytest
from benchmarks.learn import environment

from ltrain_train.policy import Policies
from ltrain_train.runs.journal import Journal
from ltrain_transforms.recipe import Recipe

ROOT = Path(__file__).parents[2]
MODEL = ROOT / ".ltrain" / "models" / "smollm2"
ELSEWHERE = {
    "air": "make bench-air trains its tiny policy",
    "code_repair": "its policies need a warm start; tests/frameworks runs its agents",
}
"""Examples that are not trained here, and why."""
WAVE, HELD_OUT = 8, 6
"""Training tasks and held-out tasks, of all in the files: the wave of the update is short."""


def examples() -> list[str]:
    recipes = sorted((ROOT / "examples").glob("*/ltrain.toml"))
    names = [file.parent.name for file in recipes if Recipe.load(file).rollout is not None]
    return [name for name in names if name not in ELSEWHERE]


@pytest.fixture
def home() -> Iterator[Path]:
    """Yield a new folder for `.ltrain`, whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="le-", dir="/tmp") as folder:
        yield Path(folder)


def write_some(tasks: Path, count: int, file: Path) -> Path:
    """Write so many tasks of a file, of its domains in turn, to another file; return that."""
    domains: dict[str, list[str]] = {}
    for line in tasks.read_text().splitlines(keepends=True):
        domains.setdefault(json.loads(line).get("domain", ""), []).append(line)
    spread = (lines[:: max(1, len(lines) // count)] for lines in domains.values())
    chosen = [line for turn in zip_longest(*spread) for line in turn if line is not None]
    file.write_text("".join(chosen[:count]))
    return file


@pytest.mark.parametrize("name", examples())
def test_an_example_trains_and_is_scored(name: str, home: Path, tmp_path: Path) -> None:
    recipe = ROOT / "examples" / name / "ltrain.toml"
    rollout = Recipe.load(recipe).rollout
    assert rollout is not None and rollout.validation is not None, f"{recipe}: no held-out tasks"
    tasks = write_some(recipe.parent / rollout.tasks, WAVE, tmp_path / "tasks.jsonl")
    held_out = write_some(recipe.parent / rollout.validation, HELD_OUT, tmp_path / "held-out.jsonl")
    command = [sys.executable, "-m", "ltrain", "run", str(recipe), "--from-clickhouse", "--json"]
    options = ["--tasks", str(tasks), "--validation", str(held_out), "--updates", "1"]
    done = subprocess.run(
        [*command, *options, "--model", str(MODEL)],
        env=environment(home),
        capture_output=True,
        text=True,
        check=False,
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
            assert len(wave.tasks) == HELD_OUT
            assert wave.score is not None and 0 <= wave.score <= 1
