"""New weights in memory that a process of the same machine opens: the message that describes them.

A learner fills one piece of memory with the tensors of a version that it is writing, and sends this
message through the gateway to vLLM. The message is plain JSON, so no reader unpickles anything.
"""

import hashlib
import mmap
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt

from ltrain_train.errors import BadModel
from ltrain_train.policy.weights import read_entries, read_shapes

Digests = dict[str, str]
"""The SHA-256 of the bytes of each tensor, in hexadecimal, by the tensor's name."""


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SharedTensor(_Message):
    """One tensor, without gaps between its numbers."""

    name: str
    dtype: Literal["bfloat16", "float32"]
    shape: tuple[NonNegativeInt, ...]
    start: int = Field(ge=0)
    """Its first byte in the memory."""


class HostMemory(_Message):
    """An anonymous file (memfd) of a process; the system frees it with its last user."""

    process: int = Field(gt=0)
    descriptor: int = Field(ge=0)


class GpuMemory(_Message):
    """Memory of a GPU, opened by CUDA's IPC."""

    gpu: str
    """The UUID of the GPU."""
    ipc: tuple[bool | int | str, ...]
    """The arguments of torch's `rebuild_cuda_tensor` from `storage_handle` on; bytes are base64."""


class SharedWeights(_Message):
    """The tensors of one version in memory."""

    token: str = Field(pattern=r"^[0-9a-f]{32}$")
    """Random: it tells this memory from all others."""
    learner: str
    """Random: the process that made the memory."""
    size: int = Field(gt=0)
    """Bytes of the memory."""
    memory: HostMemory | GpuMemory
    tensors: tuple[SharedTensor, ...]

    def require_tensors_of(self, directory: Path) -> None:
        """Check that the memory has the tensors of a model directory, by name and shape.

        Raises:
            BadModel: when one is missing or differs.
        """
        shared = {tensor.name: tensor.shape for tensor in self.tensors}
        expected = read_shapes(directory)
        for name in sorted(shared.keys() | expected.keys()):
            if shared.get(name) != expected.get(name):
                raise BadModel(f"the learner's memory and '{directory}' differ in tensor {name}")


def find_difference(loaded: Digests, directory: Path) -> str | None:
    """Return the first tensor whose loaded bytes are not those of a model directory's files."""
    for file in sorted(directory.glob("*.safetensors")):
        entries = read_entries(file)
        with file.open("rb") as opened:
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            with mapped, memoryview(mapped) as view:
                for name in sorted(entries.keys() & loaded.keys()):
                    with view[slice(*entries[name])] as data:
                        if hashlib.sha256(data).hexdigest() != loaded[name]:
                            return name
    return None
