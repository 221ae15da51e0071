"""How rewards become advantages."""

from typing import Literal

from pydantic import Field, field_validator

from ltrain_instrument.errors import UnknownName
from ltrain_transforms.estimators import ESTIMATORS
from ltrain_transforms.recipe.section import Section


class Outcome(Section):
    estimator: str = "grpo"
    """How rewards become advantages within a group."""

    @field_validator("estimator")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in ESTIMATORS:
            raise ValueError(str(UnknownName("estimator", name, ESTIMATORS)))
        return name


class Process(Section):
    returns: Literal["uniform", "reward_to_go", "discounted"] = "reward_to_go"
    """What a call is worth: all call rewards alike, those from it on, or those discounted."""
    baseline: Literal["group_mean", "none"] = "group_mean"
    """Taken off: the group's mean at the same agent's k-th call."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount a call, where returns = 'discounted'."""
    weight: float = 1.0
    """Multiplies the process advantage before it is added to the outcome's."""


class Credit(Section):
    outcome: Outcome = Outcome()
    process: Process = Process()
