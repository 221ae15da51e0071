"""Training: rows in, optimizer steps under verl and Ray, model directories and checkpoints out."""

from typing import TYPE_CHECKING, Any

from ltrain_train.learner.client import LearnerClient, StepReport
from ltrain_train.learner.samples import read_rows, split_into_steps

if TYPE_CHECKING:
    from ltrain_train.learner.batch import make_batch

__all__ = ["LearnerClient", "StepReport", "make_batch", "read_rows", "split_into_steps"]


def __getattr__(name: str) -> Any:
    if name != "make_batch":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ltrain_train.learner.batch import make_batch  # its import of torch takes seconds

    return make_batch
