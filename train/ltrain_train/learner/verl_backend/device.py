"""The differences of the learner on a CPU and on GPUs; the only module that compares them.

The learner's owner detects the device and sets the environment variables of the learner's process,
which Ray's daemons and workers inherit: Ray and torch read them during import. The processes read
the device from the variables that verl reads too, so all of them use the same one.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from ltrain_train.errors import BadRun
from ltrain_train.gpu import is_usable, visible_gpus
from ltrain_train.policy import fast_dtype
from ltrain_train.processes import compile_cache

FIXED_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "PYTHONWARNINGS": "ignore",
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while waiting slow a busy machine tenfold
    "TOKENIZERS_PARALLELISM": "false",
    "VERL_LOGGING_LEVEL": "WARNING",
}
PRIVATE_CLUSTER = {
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AUTH_MODE": "token",
    # 0: no other machine joins. Without it Ray replaces 127.0.0.1 by the address of this machine,
    # and all its processes listen on every interface
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_worker_niceness": "0",  # the default, 15, starves training if the machine has other work
    "RAY_prestart_worker_first_driver": "0",  # a prestarted worker lacks a rank's environment
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Variables of a learner with a Ray cluster of its own, on this machine."""


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
        """The Ray resource that each rank reserves one unit of: `GPU` or `CPU`."""
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

        cuda.empty_cache()
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
    count = len(visible_gpus())
    if count < ranks:
        raise BadRun(
            f"`ranks` is {ranks} in [train], but each rank needs a GPU, and the learner can use "
            f"{count}. Set `ranks` to {max(1, count)}, or check `nvidia-smi` and "
            "CUDA_VISIBLE_DEVICES."
        )


def learner_environment(
    ranks: int, scratch: Path | None = None, device: Device | None = None
) -> dict[str, str]:
    """Return the variables of a learner with `ranks` ranks, with a token for its own cluster.

    Temporary files, such as verl's locks, go to `scratch`. The ranks connect through a file there,
    because torch's own server would listen on every interface.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    variables = {
        "OMP_NUM_THREADS": str(threads),
        "RAY_AUTH_TOKEN": token_hex(32),
        "TORCHINDUCTOR_CACHE_DIR": compile_cache(),  # of flex attention's kernels
    }
    if scratch is not None:
        variables |= {"DIST_INIT_METHOD": (scratch / "ranks").as_uri(), "TMPDIR": str(scratch)}
    return shared_environment(device or detect_device()) | PRIVATE_CLUSTER | variables


def shared_environment(device: Device) -> dict[str, str]:
    """Return the variables of a learner and its ranks on any machine."""
    return FIXED_ENVIRONMENT | dict(device.environment)
