"""`ltrain run`: waves of rollouts, built into datasets, learned from and served again."""

from ltrain_train.loop import command, policy_commands
from ltrain_train.loop.journal import Journal

__all__ = ["Journal", "command", "policy_commands"]
