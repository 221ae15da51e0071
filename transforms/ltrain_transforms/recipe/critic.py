"""The critic of a policy: a network of its own that estimates the return of each sampled token."""

from pydantic import Field

from ltrain_transforms.recipe.section import Section


class Critic(Section):
    """Read with `credit.outcome.estimator = "gae"` only."""

    learning_rate: float | None = Field(default=None, gt=0)
    """Learning rate of the critic's AdamW; default: that of the policy, with its schedule."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount of rewards for each sampled token."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """The lambda of GAE. 1: an advantage is the return less the value; below 1 it relies more on
    the values of later tokens, which lowers its variance and adds the critic's error."""
    value_clip: float = Field(default=0.5, gt=0)
    """Largest change of a token's value in an update that the value loss rewards."""
    whiten: bool = True
    """Whether an update's advantages are shifted and scaled to mean 0 and deviation 1 over its
    sampled tokens."""
    warmup_updates: int = Field(default=0, ge=0)
    """First updates of a run, in which the critic alone is trained."""
