"""Joins a Ray cluster that its user started; build workers and the learner use it.

* An address without a cluster is an error within `CONNECT_TIMEOUT` seconds; Ray itself tries for
  minutes.
* Leaving the cluster does not stop it. Ray frees what this process had there, also if it is killed.
"""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from ltrain_transforms.errors import NoCluster

CONNECT_TIMEOUT = 5.0
"""Seconds to connect to the head of a cluster."""


def join_cluster(
    address: str, *, setting: str, otherwise: str, variables: Mapping[str, str] | None = None
) -> Any:
    """Connect this process to the cluster at `address` and return the module `ray`.

    Args:
        address: `auto`, `host:port` or `ray://host:port`.
        setting: the name of the setting that holds the address, for errors.
        otherwise: what happens without that setting, for errors.
        variables: environment variables of all processes that Ray starts for this one.

    Raises:
        NoCluster: when no cluster answers, or it has another version of Ray or Python.
    """
    import ray

    try:
        _check_reachable(address)
        ray.init(
            address=address,
            log_to_driver=False,
            configure_logging=False,
            runtime_env={"env_vars": dict(variables)} if variables else None,
        )
    except (OSError, OverflowError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise NoCluster(
            f"No Ray cluster at {address}: {_reason(error)}. Set {setting} to the host:port that "
            f"`ray start --head` prints, or leave it out to {otherwise}."
        ) from error
    return ray


@contextmanager
def joined_cluster(address: str, *, setting: str, otherwise: str) -> Iterator[Any]:
    """Connect to a cluster as `join_cluster` does, and leave it after the block."""
    ray = join_cluster(address, setting=setting, otherwise=otherwise)
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise `OSError` unless a gRPC server answers, as the head of a cluster does."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():  # auto, local: Ray fails at once
        return
    socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT).close()
    if os.environ.get("RAY_USE_TLS", "0") != "0":
        return
    import grpc

    with closing(grpc.insecure_channel(f"{host}:{port}")) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=CONNECT_TIMEOUT)
        except grpc.FutureTimeoutError:
            raise OSError("what listens there is not Ray") from None


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error)
    if "ersion mismatch" in text:  # Ray lists the versions of both sides, one a line
        return " ".join(text.split()).rstrip(".")
    if text.startswith("Failed to connect"):  # Ray's own reason is only in the output
        return (
            "it does not accept this process; if it requires a token, set RAY_AUTH_MODE and "
            "RAY_AUTH_TOKEN here as where Ray was started"
        )
    return text.split("\n", 1)[0].rstrip(".")
