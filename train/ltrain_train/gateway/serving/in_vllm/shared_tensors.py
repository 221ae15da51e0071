"""New weights of a vLLM that a learner of the same machine holds in memory, of a CPU or a GPU.

`policy/shared_weights.py` has the message that describes the memory. Only fields of that message
are used, and nothing is unpickled.
"""

import hashlib
import json
import mmap
import os
from base64 import b64decode
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.multiprocessing import reductions

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}

Tensors = Iterable[tuple[str, torch.Tensor]]


class SharedTensors:
    """Methods of vLLM's workers (`--worker-extension-cls`), called by /collective_rpc."""

    device: torch.device
    model_runner: Any

    def reload_shared(self, shared: str, digest: str = "") -> dict[str, str]:
        """Load weights in memory in place of those in use; return digests if they are wanted."""
        tensors = open_tensors(shared, self.device)  # an error leaves the model as it was
        digests: dict[str, str] = {}
        self.model_runner.reload_weights(
            weights_iterator=digested(tensors, digests) if digest else iter(tensors)
        )
        if self.device.type == "cuda":
            torch.cuda.synchronize()  # afterwards the learner frees the memory
        return digests


def open_tensors(shared: str, device: torch.device) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors of a message, which are views of the learner's memory."""
    message = json.loads(shared)
    memory = _open_memory(message, device)
    return [(each["name"], _view(memory, **each)) for each in message["tensors"]]


def digested(tensors: Tensors, digests: dict[str, str]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors, and add the SHA-256 of each one's bytes to `digests`."""
    for name, tensor in tensors:
        data: Any = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        digests[name] = hashlib.sha256(data).hexdigest()
        yield name, tensor


def _view(
    memory: torch.Tensor, name: str, dtype: str, shape: list[int], start: int
) -> torch.Tensor:
    size = DTYPES[dtype].itemsize
    for length in shape:
        size *= length
    if not 0 <= size <= len(memory) - start:
        raise ValueError(f"tensor {name} is not in the learner's memory of {len(memory)} bytes")
    return memory[start : start + size].view(DTYPES[dtype]).view(shape)


def _open_memory(message: dict[str, Any], device: torch.device) -> torch.Tensor:
    """Return all bytes of the learner's memory."""
    place, size = message["memory"], message["size"]
    if "gpu" in place:
        return _open_gpu_memory(place, size, device)
    path = f"/proc/{place['process']}/fd/{place['descriptor']}"
    if os.readlink(path) != f"/memfd:ltrain-{message['token']} (deleted)":
        raise FileNotFoundError("the learner's memory does not exist any more")
    with open(path, "rb") as file:
        # private: torch wants memory that it could write, and what it wrote would be a copy
        mapped = mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE)
    return torch.frombuffer(mapped, dtype=torch.uint8)


def _open_gpu_memory(place: dict[str, Any], size: int, device: torch.device) -> torch.Tensor:
    if str(torch.cuda.get_device_properties(device).uuid) != place["gpu"]:
        raise ValueError("the learner's memory is that of another GPU")
    rebuild: Any = reductions.rebuild_cuda_tensor  # it has no types
    layout = (torch.Tensor, (size,), (1,), 0, torch.storage.TypedStorage, torch.uint8, device.index)
    ipc = (b64decode(each) if isinstance(each, str) else each for each in place["ipc"])
    memory: torch.Tensor = rebuild(*layout, *ipc)
    return memory
