"""Memory with the weights of a new version: another process reads it, and nothing is left of it."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ltrain_train.gateway.serving import in_vllm
from ltrain_train.learner.shared_memory import SharedMemory

FOLDER = str(Path(in_vllm.__path__[0]))
HOLD = """
import sys, torch
from ltrain_train.learner.shared_memory import SharedMemory
tensors = {"w": torch.arange(100_000.0), "b": torch.ones(3)}
memory = SharedMemory(tensors, torch.float32)
memory.fill(tensors.items())
print(memory.describe().model_dump_json(), flush=True)
sys.stdin.read()
"""
"""A process that shares tensors until its input ends."""
READ = """
import sys
import torch
from shared_tensors import digested, open_tensors
digests = {}
list(digested(open_tensors(sys.argv[1], torch.device("cpu")), digests))
print(digests)
"""


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that reads the memory in vLLM's processes."""
    monkeypatch.syspath_prepend(FOLDER)
    return import_module("shared_tensors")


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {"a.weight": torch.randn(5, 3), "b": torch.randn(7), "c": torch.randn(())}


@pytest.fixture
def memory(tensors: dict[str, torch.Tensor]) -> Iterator[SharedMemory]:
    memory = SharedMemory(tensors, torch.bfloat16)
    memory.fill(tensors.items())
    yield memory
    memory.close()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = set(os.listdir("/dev/shm"))
    yield
    ours = {name for name in set(os.listdir("/dev/shm")) - before if "ltrain" in name}
    assert not ours


def test_another_process_reads_the_bytes_of_a_file_of_the_tensors(
    memory: SharedMemory, tensors: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    save_file(dict(memory.tensors()), tmp_path / "a.safetensors")
    written = load_file(tmp_path / "a.safetensors")
    assert all(torch.equal(written[name], x.bfloat16()) for name, x in tensors.items())
    expected = {
        name: hashlib.sha256(bytes(x.reshape(-1).view(torch.uint8).tolist())).hexdigest()
        for name, x in written.items()
    }
    message = memory.describe().model_dump_json()
    read = subprocess.run(
        [sys.executable, "-c", READ, message],
        env={**os.environ, "PYTHONPATH": FOLDER},
        capture_output=True,
        text=True,
        check=True,
    )
    assert read.stdout.strip() == str(expected)


def test_a_reader_cannot_change_or_cut_the_memory(memory: SharedMemory, reader: Any) -> None:
    message = memory.describe()
    (name, tensor), *_ = reader.open_tensors(message.model_dump_json(), torch.device("cpu"))
    tensor.zero_()
    assert dict(memory.tensors())[name].abs().sum() > 0
    place = message.memory.model_dump()
    with pytest.raises(PermissionError):
        os.truncate(f"/proc/{place['process']}/fd/{place['descriptor']}", 0)


def test_closed_memory_and_memory_of_another_token_are_not_read(
    memory: SharedMemory, reader: Any
) -> None:
    message = memory.describe()
    other = message.model_copy(update={"token": "0" * 32}).model_dump_json()
    with pytest.raises(FileNotFoundError, match=r"memory does not exist any more"):
        reader.open_tensors(other, torch.device("cpu"))
    memory.close()
    with pytest.raises(FileNotFoundError):
        reader.open_tensors(message.model_dump_json(), torch.device("cpu"))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"start": 10_000}, "tensor b is not in the learner's memory of 192 bytes"),
        ({"shape": [10_000]}, "tensor b is not in the learner's memory of 192 bytes"),
        ({"shape": [-1]}, "tensor b is not in the learner's memory of 192 bytes"),
        ({"dtype": "int8"}, "int8"),
    ],
)
def test_a_tensor_outside_the_memory_is_refused(
    memory: SharedMemory, reader: Any, change: dict[str, Any], sentence: str
) -> None:
    content = memory.describe().model_dump(mode="json")
    content["tensors"][1] |= change
    with pytest.raises((ValueError, RuntimeError, KeyError), match=sentence):
        reader.open_tensors(json.dumps(content), torch.device("cpu"))


def test_a_killed_learner_leaves_whole_tensors_to_who_has_opened_them_and_nothing_else(
    reader: Any,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as learner:
        assert learner.stdout is not None
        message = learner.stdout.readline()
        opened = dict(reader.open_tensors(message, torch.device("cpu")))
        learner.send_signal(signal.SIGKILL)
        learner.wait()
    assert torch.equal(opened["w"], torch.arange(100_000.0))
    with pytest.raises(FileNotFoundError):
        reader.open_tensors(message, torch.device("cpu"))
