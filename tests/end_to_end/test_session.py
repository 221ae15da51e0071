"""The program of docs/python.md that trains, run as it is printed, with the tiny policy."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.docs.blocks import read_blocks

from ltrain_train.runs.journal import Journal

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.mark.nightly
def test_a_session_trains_its_own_functions(project: Callable[[str], Any], tmp_path: Path) -> None:
    made = project("session")
    shutil.copytree(made.model, tmp_path / "model")
    assert PAGE.name == "python.md"
    [block] = [each for each in read_blocks(PAGE, PAGE.read_text()) if "# train.py\n" in each.text]
    done = subprocess.run(
        [sys.executable, "-c", block.text],
        env=made.environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Run weather starts from short@0: 1 update of 12 tasks" in done.stdout
    journal = Journal.load(made.home / "runs" / "weather")
    assert journal is not None
    waves = [(wave.mode, wave.version, wave.rollouts, wave.outcomes) for wave in journal.waves]
    measured = [[(mode, version, 1, {"ok": 1}) for mode in ("val", "test")] for version in (0, 1)]
    assert waves == [*measured[0], ("train", 0, 96, {"ok": 96}), *measured[1]]
    [trained] = [wave for wave in journal.waves if wave.mode == "train"]
    assert trained.published == 1 and trained.samples > 0
    assert all(0 < wave.evaluations["reward"] < 1 for wave in journal.waves)
    assert "shape: (2, 3)" in done.stdout and "shape: (5, " in done.stdout
    assert "Test tasks: 0.0" in done.stdout and " with v0, then 0.0" in done.stdout
    assert f"'samples': {trained.samples}" in done.stdout
