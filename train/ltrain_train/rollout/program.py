"""The program of a run: its agent, what rewards the agent, and how many attempts run at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ltrain_instrument.allow import Allow, ConstrainedCalls
from ltrain_instrument.settings import secret_variables
from ltrain_train.gateway import OUTAGE_TIMEOUT
from ltrain_train.rollout.environment_tasks import environment_variables
from ltrain_train.rollout.rewards import REWARD_CONCURRENCY, REWARD_TIMEOUT
from ltrain_train.sandboxes import SandboxSettings
from ltrain_train.workers import agent_environment, find_python, is_reference

if TYPE_CHECKING:  # its import takes a second, which `ltrain rollout` saves
    from ltrain_transforms.recipe import Judge, Recipe, Rollout, Service

CONCURRENCY = 16
"""Rollouts at a time in one worker, unless the user has a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProgram:
    """An agent, its rewards, its services and its limits; fields have the names of [rollout]."""

    folder: Path
    """Folder of the agent and the reward function."""
    agent: str | None = None
    """`module:function` or a command; None: the workers of the gateway have the agent."""
    reward: str | None = None
    """`module:function`, a command or a URL; None: no reward."""
    judges: Mapping[str, "Judge"] = field(default_factory=dict)
    """The recipe's judges, by the name of their evaluation."""
    services: Sequence["Service"] = ()
    """The recipe's services, which the agent uses."""
    secrets: Sequence[str] = ()
    """Environment variables that the agent does not get, besides ltrain's own."""
    workers: int = 2
    """Worker processes."""
    concurrency: int | None = None
    """Rollouts at a time in one worker; None: 16, and fewer while the model server is too slow."""
    python: str | None = None
    """The Python of the agent's processes; None: ltrain's own."""
    timeout: float = 60.0
    """The agent's own seconds until an attempt times out."""
    wall_timeout: float | None = None
    """All seconds of an attempt; None: `timeout` and twenty minutes."""
    max_calls: int = 200
    """Answered model calls of an attempt."""
    max_tokens: int | None = None
    """Tokens that the policy samples in an attempt; None: no limit."""
    reward_timeout: float = REWARD_TIMEOUT
    """Seconds for the reward of one result."""
    reward_concurrency: int = REWARD_CONCURRENCY
    """Results that are judged at a time."""
    reward_rate: float | None = None
    """Calls of the reward in a second; None: no limit."""
    agent_sees: Sequence[str] = ("input",)
    """Keys of a task that the agent may read, besides id and domain."""
    allow: Sequence[Allow] = ()
    """Untrainable request features that calls in mode `train` may use."""
    constrained: ConstrainedCalls = "masked"
    """How the gateway treats calls with structured output: `train.constrained`."""
    pin_version: bool = False
    """Whether an attempt is tried again when the version of its first call is gone."""
    sandbox: SandboxSettings | None = None
    """The sandbox of each attempt, if the agent is a command."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Variables added to the agent's environment."""

    @classmethod
    def from_section(cls, rollout: "Rollout", folder: Path, recipe: "Recipe | None") -> Self:
        """Return the program of a [rollout] section, with the judges and services of its recipe."""
        own: dict[str, Any] = rollout.model_dump(include={each.name for each in fields(cls)})
        if recipe is not None:
            own |= {"judges": recipe.judges, "services": recipe.service, "secrets": recipe.secrets}
            own["constrained"] = recipe.train.constrained
        own["sandbox"] = SandboxSettings.from_section(rollout, folder)
        own["environ"] = environment_variables(rollout)
        return cls(folder=folder, **own)

    @property
    def wall_seconds(self) -> float:
        """Seconds after which an attempt ends as `infra`."""
        return self.wall_timeout or self.timeout + OUTAGE_TIMEOUT

    @property
    def slots(self) -> int:
        """Attempts at a time in one process."""
        return (self.concurrency or CONCURRENCY) if self.is_function else 1

    @property
    def most_attempts(self) -> int:
        """Attempts at a time in the processes of this machine."""
        return self.workers * self.slots

    @property
    def adapts(self) -> bool:
        """Whether fewer attempts run at a time while the model server is too slow."""
        return self.agent is not None and self.concurrency is None

    @property
    def is_function(self) -> bool:
        """Whether worker processes import the agent."""
        return self.agent is not None and is_reference(self.agent)

    @property
    def interpreter(self) -> Path:
        """The Python of the agent's processes.

        Raises:
            BadInterpreter: when it cannot run the agent.
        """
        return find_python(self.python, self.folder)

    def environment(self, home: Path, python: Path) -> dict[str, str | None]:
        """Return the variables of the agent's processes; None removes one."""
        hidden = dict.fromkeys([*secret_variables(), *self.secrets])
        return agent_environment(home, {**hidden, **self.environ}, python)
