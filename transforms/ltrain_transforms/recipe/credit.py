"""How rewards become advantages."""

from enum import StrEnum
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from ltrain_instrument.errors import UnknownName
from ltrain_transforms.estimators import outcome_estimator, step_estimator
from ltrain_transforms.recipe.section import Section


class Peers(StrEnum):
    GROUP = "group"
    """Whole executions, with the others of the group."""
    AGENT = "agent"
    """An agent's part of an execution, with the same agent's in the group."""
    PARENT = "parent"
    """An agent's invocation, with its siblings under one parent; without, as in the group."""


class Outcome(Section):
    estimator: str = "grpo"
    """How rewards become advantages among those that are compared."""
    peers: Peers = Peers.GROUP
    """What is compared with what."""
    decay: float = Field(default=0.95, ge=0, lt=1)
    """What `rae` keeps of its baseline at each return."""

    @field_validator("estimator")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            outcome_estimator(name)
        except UnknownName as error:
            raise ValueError(str(error)) from error
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


class Step(Section):
    """Read only where a step estimator is wanted."""

    estimator: str = "gigpo"
    """What compares a call with the calls before the same choice."""
    state: tuple[str, ...] = ()
    """The variables whose values are the state that steps share; empty: all of it."""
    weight: float = 1.0
    """Multiplies the step advantage before it is added."""
    gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount a turn, of call rewards and of the outcome at the end."""
    history: int = Field(default=2, ge=0)
    """The most states before the current one that `hgpo` compares by."""
    power: float = Field(default=1.0, ge=0)
    """`hgpo` weighs a history of k states by (k + 1)^power."""
    scale: Literal["none", "std"] = "none"
    """Whether a difference is divided by the deviation of its peers."""

    @field_validator("estimator")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            step_estimator(name)
        except UnknownName as error:
            raise ValueError(str(error)) from error
        return name


class Credit(Section):
    outcome: Outcome = Outcome()
    process: Process = Process()
    step: Step | None = None
    combine: Literal["advantages", "rewards"] = "advantages"
    """Fused as advantages; or call rewards are added to the outcome, and the sum is compared."""

    @property
    def values_are_the_trainers(self) -> bool:
        """Whether advantages are left to a trainer with a critic."""
        return self.outcome.estimator == "gae"

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        outcome, given = self.outcome, self.model_fields_set
        if self.combine == "rewards" and "process" in given:
            raise ValueError(
                "combine = 'rewards' adds call rewards to the outcome, which leaves nothing to "
                "[credit.process]. Remove one of the two."
            )
        if self.values_are_the_trainers and given & {"process", "step", "combine"}:
            raise ValueError(
                "estimator = 'gae' leaves every advantage to the trainer's critic. Remove process, "
                "step and combine from [credit]."
            )
        if outcome.estimator == "rae" and outcome.peers is not Peers.AGENT:
            raise ValueError(
                "estimator = 'rae' keeps a baseline for each agent. Set peers = 'agent'."
            )
        if outcome.peers is Peers.PARENT and self.combine != "rewards":
            raise ValueError(
                "peers = 'parent' compares sub-agents of one execution by what their own calls "
                "were given: its outcome is the same for all. Set credit.combine = 'rewards'."
            )
        return self
