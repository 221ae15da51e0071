"""`ltrain apo`: prompts are criticised, edited and selected over the same rollouts and rewards."""

from ltrain_train.prompts.command import optimize_prompt

__all__ = ["optimize_prompt"]
