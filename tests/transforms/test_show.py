"""The two commands, as a user types them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ltrain_collector.store import Store


def ltrain(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "LTRAIN_STORE": f"chdb://{folder}/store", "COLUMNS": "160"}
    command = [sys.executable, "-m", "ltrain", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def folder(scene: Any, recipe_file: Path) -> Path:
    """A recipe and a store with one group of two."""
    for sample in range(2):
        rollout = scene.attempt("t1", sample)
        rollout.dispatch()
        rollout.llm("write", text="SELECT name FROM singer", state={"question": "who sings?"})
        rollout.tool(error="boom()" if sample == 0 else "", state={"query": "SELECT"})
        rollout.evaluate(float(sample))
        rollout.close()
    with Store.open(f"chdb://{recipe_file.parent}/store") as store:
        store.migrate()
        store.insert_otlp(scene.request())
    return recipe_file.parent


def test_a_rollout_is_shown_by_the_beginning_of_its_id(folder: Path, scene: Any) -> None:
    failed = scene.attempts[0]
    done = ltrain(folder, "show", failed.rollout[:6])
    assert (done.returncode, done.stderr) == (0, "")
    for said in (
        f"rollout {failed.rollout}",
        "run demo, mode train, wave 0, task t1, sample 0",
        "attempt 1: ok",
        "its group of 2: mean 0.500",
        "SELECT name FROM singer",
        "3+2 ids",
        "error: boom",
        "tool-failed",
        "-0.200",
        "-0.807",
        '"who sings?"',
    ):
        assert said in done.stdout
    assert len(done.stdout.splitlines()) < 60


def test_a_rollout_as_json(folder: Path, scene: Any) -> None:
    done = ltrain(folder, "show", scene.attempts[1].rollout, "--json")
    shown = json.loads(done.stdout)
    assert [reward["rule"] for reward in shown["rewards"]] == ["answer"]
    assert [call["kind"] for call in shown["calls"]] == ["node", "llm", "node", "tool"]


def test_what_is_not_there_is_said(folder: Path) -> None:
    done = ltrain(folder, "show", "zzz")
    assert done.returncode == 1
    assert "No rollout 'zzz'" in done.stderr
    assert "Traceback" not in done.stderr
    several = ltrain(folder, "show", "")
    assert "begins the ids of 2 rollouts" in several.stderr


def test_a_dataset_is_built_and_shown(folder: Path) -> None:
    built = ltrain(folder, "build", "--out", "made", "--json")
    assert built.stderr == ""
    assert json.loads(built.stdout)["counts"]["samples"] == 2
    shown = ltrain(folder, "show", "made")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert json.loads(built.stdout)["id"] in shown.stdout


def test_a_bad_recipe_and_an_empty_selection_are_one_sentence(folder: Path) -> None:
    recipe = folder / "ltrain.toml"
    none = ltrain(folder, "build", "--run", "nobody")
    assert (none.returncode, len(none.stderr.splitlines())) == (1, 1)
    assert "Runs in it: demo" in none.stderr
    recipe.write_text(recipe.read_text().replace("credit_to", "credit_too"))
    bad = ltrain(folder, "build")
    assert bad.returncode == 1
    assert "Did you mean 'credit_to'?" in bad.stderr
