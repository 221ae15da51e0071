"""How a policy is trained on rollouts by `ltrain sft` and on preference pairs by `ltrain dpo`."""

from pydantic import Field

from ltrain_transforms.recipe.section import Section


class Finetune(Section):
    """The keys of both trainers."""

    epochs: int = Field(default=1, ge=1)
    """How often every row is trained on."""
    holdout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the tasks whose rows only measure the loss; a task is always on the same side."""


class Sft(Finetune):
    """Supervised training on the rollouts with the highest outcomes."""

    min: float | None = None
    """Least outcome of a rollout; unset: every rollout that counts."""
    best: int | None = Field(default=None, ge=1)
    """Rollouts of each group, those with the highest outcome; unset: all."""
    rows_per_step: int = Field(default=32, ge=1)
    """Rows of an optimizer step; the rows of a group are in one step."""
    learning_rate: float | None = Field(default=None, gt=0)
    """Learning rate of every step; unset: `train.learning_rate`."""


class Dpo(Finetune):
    """Preference training on pairs of a better and a worse answer."""

    pairs: int = Field(default=1, ge=1)
    """Most pairs of each group, those whose outcomes differ most."""
    beta: float = Field(default=0.1, gt=0)
    """How strongly the policy is held near the first version of the training."""
    pairs_per_step: int = Field(default=16, ge=1)
    """Pairs of an optimizer step."""
    learning_rate: float | None = Field(default=None, gt=0)
    """Learning rate of every step; unset: a tenth of `train.learning_rate`."""
