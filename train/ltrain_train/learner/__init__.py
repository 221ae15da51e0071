"""Training: rows in, optimizer steps under verl and Ray, model directories and checkpoints out."""

from ltrain_train.learner.client import LearnerClient, StepReport

__all__ = ["LearnerClient", "StepReport"]
