"""The environment of the learner's process, which Ray's daemons and workers inherit.

Ray and torch read theirs while they are imported, so it is there before Python starts.
"""

import os
from pathlib import Path
from secrets import token_hex

CPU_ENVIRONMENT = {
    "VERL_PLATFORM": "cpu",
    "VERL_USE_EXTERNAL_MODULES": "ltrain_train.learner.platform",
    "VERL_ENGINE_DEVICE": "cuda",  # verl registers its FSDP engine for CUDA; it is the same one
}
"""What makes verl run where there is no accelerator."""
FIXED_ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "PYTHONWARNINGS": "ignore",
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while they wait slow a busy machine tenfold
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AUTH_MODE": "token",
    # 0 is Ray's way to say that no other machine joins: without it Ray replaces 127.0.0.1 by the
    # address of this machine, and all of its processes listen on every interface
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_worker_niceness": "0",  # the default, 15, starves training beside any other work
    "RAY_prestart_worker_first_driver": "0",  # it would not have a rank's environment
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "VERL_LOGGING_LEVEL": "WARNING",
}
NVIDIA_DEVICE = Path("/dev/nvidiactl")
"""There where a CUDA device is; importing torch to find out would take seconds."""


def learner_environment(ranks: int, scratch: Path | None = None) -> dict[str, str]:
    """Return the variables of a learner of so many ranks, with a token for its cluster alone.

    Temporary files go to `scratch`, verl's locks for one. The ranks meet through a file there:
    torch's own server would listen on every interface.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    variables = {"OMP_NUM_THREADS": str(threads), "RAY_AUTH_TOKEN": token_hex(32)}
    if scratch is not None:
        variables |= {"DIST_INIT_METHOD": (scratch / "ranks").as_uri(), "TMPDIR": str(scratch)}
    return FIXED_ENVIRONMENT | variables | ({} if NVIDIA_DEVICE.exists() else CPU_ENVIRONMENT)
