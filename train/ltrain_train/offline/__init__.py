"""`ltrain sft`: trains a policy on stored chats, and publishes the next version."""

from ltrain_train.offline import command

__all__ = ["command"]
