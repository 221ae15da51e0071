"""How rewards become advantages."""

from enum import StrEnum
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from ltrain_instrument.errors import UnknownName
from ltrain_transforms import estimators
from ltrain_transforms.recipe.section import Section


class Peers(StrEnum):
    GROUP = "group"
    """Each execution, with the others of its group."""
    AGENT = "agent"
    """Each agent's calls in an execution, with the same agent's calls in the group."""
    PARENT = "parent"
    """Each agent invocation, with its siblings: invocations of the same agent under one parent;
    without siblings, with those in the group that have the same agent above them."""


DEFAULT_ESTIMATOR = "grpo"
"""For rollouts of tasks: each is compared with the others of its task."""

PRODUCTION_ESTIMATOR = "reinforce_pp"
"""For production traffic, which has one execution a task. Executions are compared with the whole
batch: REINFORCE++ is defined for k >= 1 answers a prompt (arXiv 2501.03262). `running` needs no
groups either, but it fits a stream: it drops the first execution of each track, and compares the
next ones with the mean of only a few, although the whole batch is there."""


class Outcome(Section):
    estimator: str = DEFAULT_ESTIMATOR
    """How rewards of peers become [advantages](credit.md#outcome); default with
    `source.mode = "prod"`: `reinforce_pp`, as production traffic has one execution a task."""
    peers: Peers = Peers.GROUP
    """The executions that are compared: see the choices below."""
    decay: float = Field(default=0.95, ge=0, lt=1)
    """The share of its baseline that `rae` keeps at each new return."""

    @field_validator("estimator")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            estimators.outcome_estimator(name)
        except UnknownName as error:
            raise ValueError(str(error)) from error
        return name


class Process(Section):
    returns: Literal["uniform", "reward_to_go", "discounted"] = "reward_to_go"
    """The return of a call: the sum of all call rewards, of those from it on, or of those
    discounted."""
    baseline: Literal["group_mean", "none"] = "group_mean"
    """Subtracted from the return: the group's mean at the same agent and turn index."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount for each LLM call, where returns = 'discounted'."""
    weight: float = 1.0
    """Factor of the process advantage in the sum with the outcome advantage."""


class Step(Section):
    """Without this section no step advantage is computed."""

    estimator: str = "gigpo"
    """How a call is [compared](credit.md#step) with other calls in the same state."""
    state: tuple[str, ...] = ()
    """The variables that make up the state; empty: all variables."""
    weight: float = 1.0
    """Factor of the step advantage in the sum of advantages."""
    gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount for each turn, of call rewards and of the outcome at the end."""
    history: int = Field(default=2, ge=0)
    """For `hgpo`: the largest number of earlier states in a comparison."""
    power: float = Field(default=1.0, ge=0)
    """For `hgpo`: a history of k states has the weight (k + 1)^power."""
    scale: Literal["none", "std"] = "none"
    """Whether an advantage is divided by the standard deviation of its peers."""

    @field_validator("estimator")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            estimators.step_estimator(name)
        except UnknownName as error:
            raise ValueError(str(error)) from error
        return name


class Credit(Section):
    outcome: Outcome = Outcome()
    process: Process = Process()
    step: Step | None = None
    combine: Literal["advantages", "rewards"] = "advantages"
    """`advantages`: the three advantages are added. `rewards`: call rewards are added to the
    outcome reward, and the sums are compared."""

    def with_default_estimator(self, name: str) -> Self:
        """Return this section with an estimator, unless it names one."""
        if "estimator" in self.outcome.model_fields_set:
            return self
        fields = dict(self.outcome) | {"estimator": name}
        outcome = Outcome.model_construct(self.outcome.model_fields_set, **fields)
        return self.model_construct(self.model_fields_set, **dict(self) | {"outcome": outcome})

    @property
    def uses_critic(self) -> bool:
        """Whether the trainer's critic computes the advantages."""
        return estimators.outcome_estimator(self.outcome.estimator).needs_critic

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        outcome, keys = self.outcome, self.model_fields_set
        if not keys:  # the defaults fit each other; to look one up imports Polars
            return self
        if self.combine == "rewards" and "process" in keys:
            raise ValueError(
                "combine = 'rewards' adds call rewards to the outcome, so [credit.process] has no "
                "effect. Remove one of the two."
            )
        if self.uses_critic and keys & {"process", "step", "combine"}:
            raise ValueError(
                f"estimator = '{outcome.estimator}' leaves every advantage to the trainer's "
                "critic. Remove process, step and combine from [credit]."
            )
        if self.uses_critic and "peers" in outcome.model_fields_set:
            raise ValueError(
                f"estimator = '{outcome.estimator}' compares no executions. Remove peers from "
                "[credit.outcome]."
            )
        is_for_agents = estimators.outcome_estimator(outcome.estimator).for_agents
        if is_for_agents and outcome.peers is not Peers.AGENT:
            raise ValueError(
                f"estimator = '{outcome.estimator}' keeps a baseline for each agent. "
                "Set peers = 'agent'."
            )
        if outcome.peers is Peers.PARENT and self.combine != "rewards":
            raise ValueError(
                "peers = 'parent' compares sub-agents of one execution by the rewards of their own "
                "calls, as they share one outcome. Set credit.combine = 'rewards'."
            )
        return self
