"""The Ray cluster of a learner; only this module and `placement` use Ray.

A cluster of its own:

* It listens on loopback and requires the token of its environment from every peer.
* It writes only into the scratch folder of the learner's process, which is removed with it.
* It ends with the process that started it, however that process ends.

A cluster of the user goes on when the learner ends; Ray then ends the learner's ranks.
"""

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import ray
from tenacity import RetryCallState, Retrying, retry_if_exception_message, stop_after_attempt

from ltrain_transforms.ray_cluster import join_cluster

LOOPBACK = "127.0.0.1"
GROUP = "ltrain"
"""Name of the worker group."""
RAY_FOLDER = "r"
"""Ray's folder in the scratch folder: Ray makes its own folder accessible to everyone, which the
private folder around it prevents."""
START_ATTEMPTS = 3
"""Ray allows its daemons 30 seconds to start, which may be too short on a busy machine."""
START_TIMEOUT_TEXT = "timed out during startup"
OBJECT_STORE_BYTES = 256 << 20
"""Bytes of Ray's object store; batches pass through it, weights do not."""
DEATH_TIMEOUT = 5.0
"""Seconds that the ranks have to answer before they count as alive; a rank may wait for another."""
OUT_OF_MEMORY = (
    "The machine ran out of memory and Ray ended the worker. Free memory, or lower "
    "`tokens_per_micro_batch` in [train]; the learner's log lists the memory use."
)


def start_ray(cpus: int, scratch: Path | None) -> None:
    """Start a Ray cluster for this process, with its files in `scratch`.

    Call it from the main thread: the kernel ends Ray's daemons with the thread that started them.
    """
    retrying = Retrying(
        # Ray has no exception class for this timeout
        retry=retry_if_exception_message(match=f"(?s).*{START_TIMEOUT_TEXT}"),
        stop=stop_after_attempt(START_ATTEMPTS),
        before_sleep=_report_slow_start,
        reraise=True,
    )
    retrying(_init_ray, cpus, scratch)


def _report_slow_start(state: RetryCallState) -> None:
    remaining = START_ATTEMPTS - state.attempt_number
    print(f"Ray's daemons did not start in time; trying again, at most {remaining} times.")


def _init_ray(cpus: int, scratch: Path | None) -> None:
    ray.init(
        address="local",  # not the cluster that RAY_ADDRESS may name
        num_cpus=cpus,
        num_gpus=None,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        log_to_driver=False,
        configure_logging=False,
        _node_ip_address=LOOPBACK,
        _temp_dir=str(scratch / RAY_FOLDER) if scratch else None,
    )


def join_ray(address: str, variables: Mapping[str, str]) -> None:
    """Join the user's cluster; `variables` are those of the ranks."""
    otherwise = "train on this machine only"
    join_cluster(address, setting="train.ray_address", otherwise=otherwise, variables=variables)


def use_node_interface() -> None:
    """Make gloo and NCCL listen where the other nodes reach this one; call it in a rank.

    They would take the address of the host name, which on many systems is a loopback one.
    """
    from psutil import net_if_addrs

    untyped_ray: Any = ray
    address = untyped_ray.util.get_node_ip_address()
    for name, addresses in net_if_addrs().items():
        if address in (each.address for each in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")


def rank_environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Return the variables that verl's RayWorkerGroup sets for one rank's process."""
    return {
        "WORLD_SIZE": str(ranks),
        "RANK": str(rank),
        "WG_PREFIX": GROUP,
        "WG_BACKEND": "ray",
        "RAY_LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
    }


def preimport(module: str, ranks: int, port: int) -> None:
    """Start importing `module` in the processes that the ranks will run in, and return at once.

    Ray runs an actor in an idle process with an equal environment, so these imports run while this
    process imports too. This only saves some seconds.
    """
    importing = ray.remote(_import).options
    for rank in range(ranks):
        environ = rank_environment(rank, ranks, port)
        importing(num_cpus=0, runtime_env={"env_vars": environ}).remote(module)


def stop_ray() -> None:
    """Stop the Ray cluster of this process, or leave the user's."""
    ray.shutdown()


def as_actor_class(worker: type) -> Any:
    """Return a class whose instances are Ray actors."""
    return ray.remote(worker)


def describe_error(error: Exception, ranks: Sequence[Any] = ()) -> str:
    """Return the message of a rank's error, without Ray's traceback.

    Args:
        error: what the call to the ranks raised.
        ranks: Ray's actors. When the process of one died, the message is how: the others then fail
            at their connections to it, and Ray may report them first.
    """
    first = _find_death(ranks) or error
    if isinstance(first, ray.exceptions.OutOfMemoryError):
        return OUT_OF_MEMORY
    cause: Any = first
    if isinstance(first, ray.exceptions.RayTaskError):
        cause = cause.as_instanceof_cause()
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return lines[-1] if lines else type(cause).__name__


def _find_death(ranks: Sequence[Any]) -> ray.exceptions.RayError | None:
    """Return how the process of a rank died; None if all answer or still compute."""
    calls = [rank.__ray_ready__.remote() for rank in ranks]
    if not calls:
        return None
    answered, _ = ray.wait(calls, num_returns=len(calls), timeout=DEATH_TIMEOUT)
    for call in answered:
        try:
            ray.get(call)
        except ray.exceptions.RayError as death:
            return death
    return None


def _import(module: str) -> None:
    import_module(module)
