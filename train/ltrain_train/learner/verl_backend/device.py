"""What the learner does differently on a CPU and on GPUs; the only module that compares them.

The learner's owner detects the device. The processes of the learner read it from the environment
variables that verl reads too, so all of them use the same one.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ltrain_train.errors import BadRun
from ltrain_train.gpu import count_visible, is_usable
from ltrain_train.policy import fast_dtype


@dataclass(frozen=True, slots=True)
class Device:
    """The settings of a kind of device."""

    name: str
    """torch's name, and verl's."""
    environment: Mapping[str, str]
    """Variables of the learner's processes."""
    tree_attention: str
    """transformers' name of the attention that computes prefix trees."""
    gradient_checkpointing: bool
    """Whether layers are computed twice to save memory."""
    process_group: str | None
    """torch's backend that a rank connects with before verl does; None: verl connects."""
    one_rank_each: bool
    """Whether each rank has a device of its own, which Ray counts and assigns."""

    @property
    def resource(self) -> str:
        """Ray's name of what each rank needs one of."""
        return "GPU" if self.one_rank_each else "CPU"

    def compute_dtype(self, dtype: str) -> str:
        """Return the precision of the model's computation; `dtype` is that of served weights."""
        return dtype if fast_dtype() == "bf16" else "fp32"

    def free_memory(self, ranks: int) -> int:
        """Return the free bytes for a model that all ranks share."""
        if not self.one_rank_each:
            from psutil import virtual_memory

            return virtual_memory().available
        from torch import cuda

        return cuda.mem_get_info()[0] * ranks


CPU = Device(
    name="cpu",
    environment={
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "ltrain_train.learner.verl_backend.cpu_platform",
        "VERL_ENGINE_DEVICE": "cuda",  # verl registers its FSDP engine for CUDA only
    },
    tree_attention="ltrain_prefix_tree",
    gradient_checkpointing=False,
    process_group="gloo",  # verl would request the backend `cpu:gloo,cpu:gloo`
    one_rank_each=False,
)
CUDA = Device(
    name="cuda",
    environment={},
    tree_attention="flex_attention",
    gradient_checkpointing=True,
    process_group=None,
    one_rank_each=True,
)


def detect_device() -> Device:
    """Return the device on which this machine and environment train."""
    return CUDA if is_usable() else CPU


def current_device() -> Device:
    """Return the device of this process of the learner."""
    return CPU if os.environ.get("VERL_PLATFORM") == CPU.name else CUDA


def check_ranks(device: Device, ranks: int) -> None:
    """Check that there is a device for each rank; Ray would wait for a missing one forever."""
    if not device.one_rank_each:
        return
    count = count_visible()
    if count < ranks:
        raise BadRun(
            f"`ranks` is {ranks} in [train], but each rank needs a GPU, and the learner can use "
            f"{count}. Set `ranks` to {max(1, count)}, or check `nvidia-smi` and "
            "CUDA_VISIBLE_DEVICES."
        )
