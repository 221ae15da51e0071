"""The functions of `ltrain_train.learner.backend.Backend`; each imports what it needs."""

import gc
from importlib import import_module
from typing import TYPE_CHECKING

from opentelemetry.trace import Tracer

from ltrain_train.errors import BadRun
from ltrain_train.learner.prefix_tree import supports_packing
from ltrain_train.learner.protocol import Job
from ltrain_train.learner.verl_backend.device import (
    check_ranks,
    current_device,
    detect_device,
    learner_environment,
    shared_environment,
)
from ltrain_train.policy import read_config
from ltrain_train.processes import free_port

if TYPE_CHECKING:
    from ltrain_train.learner.verl_backend.learner import Learner
    from ltrain_train.learner.verl_backend.placement import Placement

LEARNER_MODULE = "ltrain_train.learner.verl_backend.learner"
RANK_MODULE = "ltrain_train.learner.verl_backend.rank"


def environment(job: Job) -> dict[str, str]:
    """Return the variables of the learner's process."""
    device = detect_device()
    check_sequence_ranks(job)
    if job.ray_address is not None:
        return shared_environment(device)
    check_ranks(device, job.ranks)
    return learner_environment(job.ranks, job.scratch, device)


def check_sequence_ranks(job: Job) -> None:
    """Check that so many ranks can compute each row together.

    Raises:
        BadRun: when they cannot with this model.
    """
    if job.sequence_ranks == 1:
        return
    config, sentence = read_config(job.base), f"`sequence_ranks` is {job.sequence_ranks} in [train]"
    if not supports_packing(config):
        raise BadRun(
            f"{sentence}, but the ranks cannot divide the rows of '{job.base}' (model type "
            f"{config.get('model_type')!r}). Set `sequence_ranks` to 1."
        )
    heads = int(config["num_attention_heads"])
    keys = int(config.get("num_key_value_heads") or heads)
    divisors = (number for number in range(1, heads + 1) if heads % number == 0)
    numbers = [each for each in divisors if keys % each == 0 or each % keys == 0]
    if job.sequence_ranks not in numbers:
        raise BadRun(
            f"{sentence}, but the ranks cannot divide the {heads} attention heads of '{job.base}' "
            f"({keys} of keys). Choose from: {', '.join(map(str, numbers))}."
        )


def start(job: Job, tracer: Tracer) -> "Learner":
    """Start or join Ray if the ranks need it, import verl, then load the model.

    Ray starts before the import: it copies the environment, which verl's import changes.
    """
    placement = find_placement(job)
    gc.disable()  # searches for cycles of objects take a sixth of this import's time
    learner = import_module(LEARNER_MODULE)
    gc.enable()
    started: Learner = learner.Learner(job, placement, tracer)
    return started


def describe_error(error: Exception, trainer: "Learner | None") -> str:
    """Return the message of a rank's error, or how its process died."""
    from ltrain_train.learner.verl_backend import cluster

    return cluster.describe_error(error, trainer.group.workers if trainer else ())


def stop() -> None:
    """Stop the Ray cluster of this process, or leave the user's."""
    from ltrain_train.learner.verl_backend import cluster

    cluster.stop_ray()


def find_placement(job: Job) -> "Placement | None":
    """Start Ray or join the user's cluster, and return where the ranks run.

    None: the only rank on this machine runs in this process, without Ray.
    """
    from ltrain_train.learner.verl_backend import cluster
    from ltrain_train.learner.verl_backend.placement import Placement

    device = current_device()
    if job.ray_address is not None:
        cluster.join_ray(job.ray_address, shared_environment(device))
        return Placement.reserve(job, device)
    if job.ranks == 1:
        return None
    cluster.start_ray(job.ranks, job.scratch)
    port = free_port()
    cluster.preimport(RANK_MODULE, job.ranks, port)  # while this process imports it too
    return Placement(address=cluster.LOOPBACK, port=port)
