"""Errors of training that a user can fix: rows, a base model, a checkpoint."""

from ltrain_instrument.errors import LtrainError
from ltrain_train.errors import DiskFull

__all__ = ["BadBase", "BadCheckpoint", "BadSamples", "DiskFull", "LearnerFailed"]


class BadSamples(LtrainError, ValueError):
    """A samples file cannot be read, or has rows that an RL loss cannot use."""


class BadBase(LtrainError, ValueError):
    """A model directory lacks a file that training starts from."""


class BadCheckpoint(LtrainError, ValueError):
    """A checkpoint is missing, incomplete, or of another model."""


class LearnerFailed(LtrainError, RuntimeError):
    """The learner raised an unexpected error; its log has the details."""
