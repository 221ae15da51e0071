"""One attempt at a rollout: what an agent is asked, and what came of it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ltrain_instrument.identity import Identity
from ltrain_train.rollout.machine import oom_kills

ATTEMPTS = 3
"""Times a rollout is tried before an outage ends it as `infra`."""


class Outcome(StrEnum):
    OK = "ok"
    ERROR = "error"
    """The agent raised, its command or its process failed, or the reward function on its result."""
    TIMEOUT = "timeout"
    """The agent ran past the deadline."""
    INFRA = "infra"
    """An outage that the runner or the gateway saw: it does not count."""
    CANCELLED = "cancelled"
    """The run was stopped while it ran: it does not count."""


COUNTING = frozenset({Outcome.OK, Outcome.ERROR, Outcome.TIMEOUT})
"""The agent's own outcomes: these finish a rollout."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where this attempt's model answers, OpenAI-compatible."""

    base_url: str
    api_key: str = field(repr=False)
    """Good for this attempt alone, until it is closed."""
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    identity: Identity
    task: Mapping[str, Any]
    """What the agent sees of it."""
    endpoint: Endpoint
    traceparent: str
    """Of its dispatch span: the root of its trace."""
    started: int
    """Unix nanoseconds."""
    deadline: float
    """Seconds it has."""
    environ: Mapping[str, str | None] = field(default_factory=dict, repr=False)
    """What a process of its own finds beside: the store's key for it."""
    alone: bool = False
    """Whether its process is its own: an attempt before it died with others, or for memory."""
    oom_kills: int = field(default_factory=oom_kills)
    """Processes that the kernel had killed for memory before it."""

    @property
    def id(self) -> str:
        """Its execution id."""
        return f"{self.identity.rollout}.{self.identity.attempt}"


@dataclass(frozen=True, slots=True)
class Ending:
    """How the agent's part of an attempt ended."""

    outcome: Outcome
    reason: str = ""
    result: Any = None
    """What `solve` returned or the command printed; only of an `ok`."""
    died: bool = False
    """Of an `infra`: its process died, and perhaps for another reason than the agent's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutResult:
    identity: Identity
    """Of the last attempt."""
    outcome: Outcome
    reason: str
    """Why it is not `ok`; '' where it is."""
    rewards: dict[str, float]
    """The reward function's values by name; empty where it was not asked."""
    seconds: float
    """Wall time of the last attempt."""
    llm_calls: int
    """Calls that the gateway answered in it."""


class WaveResult(list[RolloutResult]):
    """The rollouts that one `run` finished, in the order of their ends."""

    @property
    def outcomes(self) -> dict[str, int]:
        """Count the rollouts by outcome."""
        return dict(Counter(result.outcome.value for result in self))

    def means(self) -> dict[str, float]:
        """Average each reward over the rollouts that count; one without a value adds 0."""
        counting = [result for result in self if result.outcome in COUNTING]
        names = sorted({name for result in counting for name in result.rewards})
        return {
            name: sum(result.rewards.get(name, 0.0) for result in counting) / len(counting)
            for name in names
        }
