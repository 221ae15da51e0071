"""The CPU as a verl platform, through verl's plugin hook.

`VERL_USE_EXTERNAL_MODULES` names this module and `VERL_PLATFORM=cpu` selects it. Without these
variables verl detects its accelerator itself. A platform has CUDA's functions; most of them have no
meaning on a CPU and return 0 or None.
"""

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


def _nothing(*_: object, **__: object) -> None: ...


def _zero(*_: object, **__: object) -> int:
    return 0


def _device_module() -> ModuleType:
    """Return a copy of `torch.cpu` with further functions of `torch.cuda`."""
    module = ModuleType("ltrain_cpu")
    for name in dir(torch.cpu):
        if not name.startswith("__"):
            setattr(module, name, getattr(torch.cpu, name))
    beyond = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "get_device_name": lambda *_: "cpu",
        "mem_get_info": lambda *_: (0, 0),
        "get_rng_state": torch.get_rng_state,
        "set_rng_state": torch.set_rng_state,
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
    }
    zeros = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
    idle = ("empty_cache", "ipc_collect", "reset_peak_memory_stats", "set_device", "synchronize")
    beyond |= dict.fromkeys(zeros, _zero) | dict.fromkeys(idle, _nothing)
    for name, value in beyond.items():
        setattr(module, name, value)
    return module


_MODULE = _device_module()


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """A platform with one CPU device named `cpu`."""

    device_name = "cpu"
    vendor_name = "generic"
    device_module = _MODULE

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # verl does not detect it; only VERL_PLATFORM selects it

    def current_device(self) -> Any:
        return "cpu"  # verl passes it to `tensor.to`, where an int would mean a CUDA device

    def device_count(self) -> int:
        return 1

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "LTRAIN_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def ray_resource_options(self, num_gpus: float) -> dict[str, float]:
        return {"num_cpus": num_gpus}

    def is_ipc_supported(self) -> bool:
        return False

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def cudart(self) -> Any:
        return None

    set_device = synchronize = set_allocator_settings = _nothing
    empty_cache = profiler_start = profiler_stop = _nothing
