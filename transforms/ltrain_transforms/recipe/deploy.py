"""`[deploy]`: when a candidate becomes current, and when it is taken back."""

from typing import Literal

from pydantic import Field

from ltrain_transforms.recipe.section import Section


class Deploy(Section):
    """How `ltrain deploy decide` judges a candidate; read only there, and not in the digest."""

    goal: str = Field(default="reward", min_length=1)
    """The metric that decides: the name of an evaluation, such as feedback, or one of the metrics
    of `guards`."""
    min_gain: float = Field(default=0.0, ge=0)
    """The gain of the goal that a promotion needs, at least."""
    max_loss: float = Field(default=0.0, ge=0)
    """The loss of the goal at which the candidate is taken back."""
    guards: dict[str, float] = Field(default={"units with feedback": 0.1, "failed calls": 0.05})
    """By how much other metrics may be worse: `failed calls`, `seconds of a call` (of these two
    less is better), `units with feedback` and evaluations."""
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """The probability of a wrong promotion, and that of a wrong end."""
    budget: int = Field(default=10_000, ge=1)
    """Conversations that the candidate may answer, at most; then it is taken back."""
    approve: Literal["automatic", "manual"] = "automatic"
    """manual: a promotion is only recommended, for `ltrain deploy promote`."""
    reward_window: float = Field(default=300.0, ge=0)
    """Seconds from the last call of a trace on in which its feedback may arrive; until then the
    trace is not compared."""
    poll: float = Field(default=60.0, gt=0)
    """Seconds between two looks of `ltrain deploy decide --watch`."""
