"""`ltrain sft` and `ltrain dpo`: train a policy on stored chats, and publish the next version."""

from ltrain_train.offline import command

__all__ = ["command"]
