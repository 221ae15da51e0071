"""Memory with the rounded weights of a new version, which vLLM on this machine opens.

* On a CPU it is an anonymous file (memfd). It has no name and is in no folder, so it ends with the
  last process that has it open, however that process ends. Its length is sealed: a reader cannot
  lose a page of it.
* On a GPU it is a part of the GPU's memory, which a process of the same user opens by CUDA IPC.
"""

import fcntl
import mmap
import os
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from secrets import token_hex
from typing import Any, Protocol

import torch
from torch.multiprocessing import reductions

from ltrain_train.policy import GpuMemory, HostMemory, SharedTensor, SharedWeights

ALIGNMENT = 64
"""The start of each tensor is a multiple of it, in bytes."""
LEARNER = token_hex(16)
"""The random name of this process, which no other learner has."""


class Shaped(Protocol):
    """A tensor, perhaps in parts of several ranks."""

    shape: torch.Size
    device: torch.device


class SharedMemory:
    """The tensors of one version in one piece of memory."""

    def __init__(self, tensors: Mapping[str, Shaped], dtype: torch.dtype) -> None:
        """Take memory for tensors like these, on their device, in another precision."""
        self._dtype, self._token = dtype, token_hex(16)
        self._tensors: dict[str, SharedTensor] = {}
        self._size = 0
        for name, tensor in tensors.items():
            shape, kind = tuple(tensor.shape), str(dtype).removeprefix("torch.")
            entry = SharedTensor(name=name, dtype=kind, shape=shape, start=self._size)  # type: ignore[arg-type]
            self._tensors[name] = entry
            self._size += -(-prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        device = next(iter(tensors.values())).device
        self._descriptor: int | None = None
        self._memory = (
            torch.empty(self._size, dtype=torch.uint8, device=device)
            if device.type == "cuda"
            else self._open_file()
        )

    def fill(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Round the tensors into the memory."""
        for name, tensor in tensors:
            self._view(self._tensors[name]).copy_(tensor.detach())

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the rounded tensors."""
        for name, entry in self._tensors.items():
            yield name, self._view(entry)

    def describe(self) -> SharedWeights:
        """Return the message with which vLLM opens the memory."""
        return SharedWeights(
            token=self._token,
            learner=LEARNER,
            size=self._size,
            memory=self._place(),
            tensors=tuple(self._tensors.values()),
        )

    def close(self) -> None:
        """Free the memory, which lasts until vLLM has closed it too."""
        self._memory = torch.empty(0)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _view(self, entry: SharedTensor) -> torch.Tensor:
        end = entry.start + prod(entry.shape) * self._dtype.itemsize
        return self._memory[entry.start : end].view(self._dtype).view(entry.shape)

    def _open_file(self) -> torch.Tensor:
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self._descriptor = os.memfd_create(f"ltrain-{self._token}", flags)
        os.truncate(self._descriptor, self._size)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, seals)
        return torch.frombuffer(mmap.mmap(self._descriptor, self._size), dtype=torch.uint8)

    def _place(self) -> HostMemory | GpuMemory:
        if self._descriptor is not None:
            return HostMemory(process=os.getpid(), descriptor=self._descriptor)
        reduce: Any = reductions.reduce_tensor  # it has no types
        arguments = reduce(self._memory)[1]
        gpu = torch.cuda.get_device_properties(arguments[6]).uuid
        ipc = (b64encode(x).decode() if isinstance(x, bytes) else x for x in arguments[7:])
        return GpuMemory(gpu=str(gpu), ipc=tuple(ipc))
