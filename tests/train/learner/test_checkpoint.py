"""Each file of a checkpoint is compared with its digest before it is loaded, and runs no code."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.damage import Damage, cut_in_half, flip_a_bit

from ltrain_train.errors import BadCheckpoint
from ltrain_train.learner.checkpoint import RECORD_FILE, CheckpointRecord, read_record, write_record
from ltrain_train.learner.client import LearnerClient

pytestmark = pytest.mark.xdist_group("learner")
RECORD = CheckpointRecord(2, 1, "base", 16, 32, 1, "r1", "sql")


class Code:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (str(self.folder),)


def files_of(checkpoint: Path) -> list[str]:
    files = (file for file in checkpoint.rglob("*") if file.is_file() and file.name != RECORD_FILE)
    return sorted(file.relative_to(checkpoint).as_posix() for file in files)


@pytest.mark.parametrize("damage", [flip_a_bit, cut_in_half])
def test_a_damaged_file_is_named_and_no_file_is_loaded(
    learner: LearnerClient, tmp_path: Path, damage: Damage
) -> None:
    checkpoint = tmp_path / "checkpoint"
    learner.save(checkpoint)
    for name in files_of(checkpoint):
        content = (checkpoint / name).read_bytes()
        (checkpoint / name).write_bytes(damage(content))
        with pytest.raises(BadCheckpoint, match=re.escape(f"is damaged: {name} has")):
            learner.load(checkpoint)
        (checkpoint / name).write_bytes(content)
    learner.load(checkpoint)


@pytest.mark.parametrize("part", ["model", "optim", "extra_state"])
def test_a_foreign_pickle_runs_no_code(learner: LearnerClient, tmp_path: Path, part: str) -> None:
    checkpoint, ran = tmp_path / "checkpoint", tmp_path / "ran"
    learner.save(checkpoint)
    [file] = checkpoint.glob(f"{part}_*.pt")
    torch.save({"lr_scheduler": Code(ran), "rng": Code(ran)}, file)
    with pytest.raises(BadCheckpoint, match=f"is damaged: {file.name} has"):
        learner.load(checkpoint)
    record: dict[str, Any] = json.loads((checkpoint / RECORD_FILE).read_text())
    (checkpoint / RECORD_FILE).write_text(json.dumps(record | {"files": None, "sha256": None}))
    with pytest.raises(BadCheckpoint, match="has a file with other objects than tensors"):
        learner.load(checkpoint)
    assert not ran.exists()


def test_a_record_lists_every_file_of_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "critic").mkdir()
    for name in ("optim.pt", "critic/model.pt"):
        (tmp_path / name).write_text("0123456789")
    write_record(tmp_path, RECORD)
    digest = "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882"
    listed = {"size": 10, "sha256": digest}
    record = json.loads((tmp_path / RECORD_FILE).read_text())
    assert record["files"] == {"critic/model.pt": listed, "optim.pt": listed}
    (tmp_path / "critic" / "model.pt").write_text("0123456788")
    with pytest.raises(
        BadCheckpoint,
        match=r"damaged: critic/model\.pt has the SHA-256 [0-9a-f]{12}…, expected 84d89877f0d4…\.",
    ):
        read_record(tmp_path, RECORD)


def test_a_changed_record_is_named(tmp_path: Path) -> None:
    write_record(tmp_path, RECORD)
    file = tmp_path / RECORD_FILE
    file.write_text(file.read_text().replace('"steps": ', '"steps": 1'))
    with pytest.raises(BadCheckpoint, match=r"learner\.json cannot be read \(its content has the"):
        read_record(tmp_path, RECORD)


def test_a_checkpoint_of_an_older_version_lists_no_files(tmp_path: Path) -> None:
    write_record(tmp_path, RECORD)
    record = json.loads((tmp_path / RECORD_FILE).read_text())
    del record["files"], record["sha256"]
    (tmp_path / RECORD_FILE).write_text(json.dumps(record))
    assert read_record(tmp_path, RECORD).files is None


@pytest.mark.parametrize("content", ["", '{"steps": 1', "[]", '{"steps": "many"}'])
def test_a_damaged_record_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / RECORD_FILE).write_text(content)
    with pytest.raises(BadCheckpoint, match=r"its learner\.json cannot be read \("):
        read_record(tmp_path, RECORD)
