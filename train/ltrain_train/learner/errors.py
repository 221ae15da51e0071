"""What a user can mend in training: rows, a base model, a checkpoint, a loss."""

from ltrain_instrument.errors import LtrainError
from ltrain_train.errors import DiskFull

__all__ = ["BadBase", "BadCheckpoint", "BadLoss", "BadSamples", "DiskFull", "LearnerFailed"]


class BadSamples(LtrainError, ValueError):
    """A samples file that cannot be read, or rows that reinforcement learning cannot use."""


class BadBase(LtrainError, ValueError):
    """A model directory that lacks what training starts from."""


class BadCheckpoint(LtrainError, ValueError):
    """A checkpoint that is not there, not whole, or of another model."""


class BadLoss(LtrainError, ValueError):
    """A loss that cannot be aggregated as the recipe asks."""


class LearnerFailed(LtrainError, RuntimeError):
    """The learner met what nobody foresaw; its log says more."""
