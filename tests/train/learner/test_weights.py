"""The weight files of an export."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ltrain_train.errors import TooLittleMemory
from ltrain_train.learner.weights import require_memory, write_weights
from ltrain_train.policy import adapter_size, reference_size, training_size


def test_tensors_that_are_not_finite_as_written_are_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({}))
    tensors = {
        "good": torch.tensor([1.0, -2.0]),
        "infinite": torch.tensor([1.0, float("inf")]),
        "overflows": torch.tensor([3.4e38]),  # above the largest number of bf16
    }
    bad = write_weights(tmp_path, tensors.items(), dtype="bf16", write=True)
    assert bad == ["infinite", "overflows"]
    assert write_weights(tmp_path, [("good", tensors["good"])], dtype="fp32", write=True) == []


def test_a_reference_needs_four_bytes_a_weight(tiny: Path) -> None:
    weights = sum(tensor.numel() for tensor in load_file(tiny / "model.safetensors").values())
    assert reference_size(tiny) == 4 * weights
    require_memory("The reference", 4 * weights, 4 * weights)
    says = r"The reference needs about 0\.00 GB beside the trained.* Free memory, or less\."
    with pytest.raises(TooLittleMemory, match=says):
        require_memory("The reference", 4 * weights, 4 * weights - 1, ", or less")


def test_training_needs_memory_for_what_it_trains(tiny: Path) -> None:
    weights = reference_size(tiny)
    assert training_size(tiny, 0) == 4 * weights
    assert weights < training_size(tiny, 4) == weights + 3 * adapter_size(tiny, 4) < 4 * weights


NOBODY = 65534
COPY = """
import os, sys
from pathlib import Path
from ltrain_train.learner.weights import copy_model_files
from ltrain_transforms.policy_lineage import write_ledger
if os.getuid() == 0:
    os.setuid(int(sys.argv[2]))  # root may write files that are read-only
home = Path(sys.argv[1])
(home / "draft").mkdir()
copy_model_files(home / "v1", home / "draft", "bf16")
write_ledger(home / "draft", ["r2"])
"""


@pytest.fixture
def open_home() -> Iterator[Path]:
    """A folder that another user can reach and write."""
    home = Path(tempfile.mkdtemp(prefix="ltrain-weights-"))
    home.chmod(0o755)
    if os.getuid() == 0:
        os.chown(home, NOBODY, -1)
    yield home
    shutil.rmtree(home)


def test_the_read_only_files_of_a_version_are_copied_without_its_lineage(open_home: Path) -> None:
    version = open_home / "v1"
    version.mkdir(mode=0o755)
    lineage = ("policy.json", "rollouts.parquet")
    for name in ("config.json", "tokenizer.json", "model.safetensors", *lineage):
        (version / name).write_text("{}")
        (version / name).chmod(0o444)
    command = [sys.executable, "-c", COPY, str(open_home), str(NOBODY)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    draft = open_home / "draft"
    copied = {"config.json", "tokenizer.json", "rollouts.parquet"}
    assert {file.name for file in draft.iterdir()} == copied
    assert json.loads((draft / "config.json").read_text()) == {"dtype": "bfloat16"}
    assert (draft / "rollouts.parquet").read_bytes() != b"{}"
