"""The environment variables of the learner's process, which Ray's daemons and workers inherit.

Ray and torch read their variables during import, so they are set before Python starts.
"""

import os
from pathlib import Path
from secrets import token_hex

from ltrain_train.learner.verl_backend.device import Device, detect_device
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
