"""`ltrain run`: waves of rollouts, built into datasets, learned from and served again."""

from ltrain_train.loop import command
from ltrain_train.loop.journal import Journal

__all__ = ["Journal", "command"]
