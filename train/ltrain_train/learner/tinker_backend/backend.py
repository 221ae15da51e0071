"""The functions of `ltrain_train.learner.backend.Backend`; each imports what it needs."""

import os
from typing import TYPE_CHECKING

from opentelemetry.trace import Tracer

from ltrain_train.errors import BadRun
from ltrain_train.learner.protocol import Job
from ltrain_train.overlays import TINKER, TINKER_ENVIRONMENT
from ltrain_transforms.recipe import TINKER_KEY

if TYPE_CHECKING:
    from ltrain_train.learner.tinker_backend.trainer import TinkerTrainer

_started: "list[TinkerTrainer]" = []
"""The trainer of this process, whose training run `stop` releases."""


def environment(job: Job) -> dict[str, str]:
    """Return the variables of the learner's process.

    Raises:
        BadRun: when this machine cannot train the job.
    """
    TINKER.find()
    check_job(job)
    if not os.environ.get(TINKER_KEY):
        raise BadRun(
            f"There is no {TINKER_KEY} in the environment, and `train.backend` is 'tinker'. Set it "
            "to the key of the service; for a server of your own it is any text that begins with "
            "tml-."
        )
    return dict(TINKER_ENVIRONMENT)


def check_job(job: Job) -> None:
    """Check that a server of the Tinker API can train a job.

    Raises:
        BadRun: when it cannot.
    """
    if job.tinker is None:
        raise BadRun("The backend tinker needs a job with a server.")
    if job.adapter is not None:
        raise BadRun(
            f"Training would start from the adapter {job.adapter}, because the version has no "
            "checkpoint at the server, and the Tinker API cannot take an adapter. Restore the "
            "checkpoint, or select a version that has one with `ltrain policy use`, or the base: "
            f"`ltrain policy use {job.policy}@0`."
        )


def start(job: Job, tracer: Tracer) -> "TinkerTrainer":
    """Open a training run at the server: that of the job's checkpoint, or a new one."""
    check_job(job)
    TINKER.add()
    from ltrain_train.learner.tinker_backend.trainer import TinkerTrainer  # it needs the SDK

    trainer = TinkerTrainer(job, tracer)
    _started.append(trainer)
    return trainer


def describe_error(error: Exception, trainer: "TinkerTrainer | None") -> str:
    """Return the first line of the error of the SDK."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def stop() -> None:
    """Release the training run, so that the server has its place again."""
    for trainer in _started:
        trainer.close()
