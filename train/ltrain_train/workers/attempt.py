"""One attempt at a rollout: its task, its endpoint and its result."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

from ltrain_instrument.identity import Identity
from ltrain_instrument.prompts import Prompt
from ltrain_train.sandboxes import Changes

VMSTAT = Path("/proc/vmstat")

MAX_TRIES = 3
"""Maximum attempts at a rollout that ends by an outage; the last one ends it as `infra`."""


def count_oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory; 0 if unknown."""
    try:
        lines = VMSTAT.read_text().splitlines()
    except OSError:
        return 0
    counts = dict(line.split(maxsplit=1) for line in lines)
    return int(counts.get("oom_kill", 0))


def recent_oom_kills() -> int:
    """Return the count of at most a tenth of a second ago, because the kernel counts slowly.

    A count that is too low takes the blame from an agent, and its rollout is tried once more.
    """
    return _oom_kills_of_tenth(int(time.monotonic() * 10))


@lru_cache(maxsize=1)
def _oom_kills_of_tenth(tenth: int) -> int:
    return count_oom_kills()


class Outcome(StrEnum):
    """How an attempt or a rollout ended."""

    OK = "ok"
    """The agent returned a result."""
    ERROR = "error"
    """The agent raised, its command or its process failed, or the reward function failed on its
    result."""
    TIMEOUT = "timeout"
    """The agent exceeded its time limit."""
    INFRA = "infra"
    """The runner or the gateway observed an outage: the attempt does not count."""
    CANCELLED = "cancelled"
    """The run was stopped during the attempt: it does not count."""


COUNTED_OUTCOMES = frozenset({Outcome.OK, Outcome.ERROR, Outcome.TIMEOUT})
"""The outcomes that the agent is responsible for; each of them finishes a rollout."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The OpenAI-compatible endpoint of one attempt's model, and its services."""

    base_url: str
    api_key: str = field(repr=False)
    """Valid for this attempt only, until it is closed."""
    model: str
    services: Mapping[str, str] = field(default_factory=dict)
    """Addresses of the recipe's services, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt that an executor runs."""

    identity: Identity
    task: Mapping[str, Any]
    """The fields of the task that the agent may read."""
    endpoint: Endpoint
    traceparent: str
    """Of the dispatch span, which is the root of the attempt's trace."""
    started: int
    """Unix nanoseconds."""
    timeout: float
    """The agent's own seconds until the attempt times out."""
    prompts: Mapping[str, Prompt] = field(default_factory=dict)
    """The prompts that the agent may read, by name."""
    environ: Mapping[str, str | None] = field(default_factory=dict, repr=False)
    """Environment variables of the attempt's own process, such as its key of the store."""
    began: float = field(default_factory=time.monotonic)
    """Monotonic seconds at which it started: limits count from there, whatever the clock does."""
    isolated: bool = False
    """Whether the attempt gets a process to itself, because an earlier attempt's process died while
    others ran in it or when memory was short."""
    oom_kills: int = field(default_factory=recent_oom_kills)
    """Processes that the kernel had killed for lack of memory before the attempt started."""

    @property
    def id(self) -> str:
        """The execution id of the attempt."""
        return f"{self.identity.rollout}.{self.identity.attempt}"

    @property
    def elapsed(self) -> float:
        """Seconds since it started."""
        return time.monotonic() - self.began


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """How the agent ended an attempt."""

    outcome: Outcome
    reason: str = ""
    output: Any = None
    """The result of the agent's function or the output of its command, if the outcome is `ok`."""
    died: bool = False
    """Whether an `infra` attempt's process died, perhaps through no fault of the agent."""
    changes: Changes | None = None
    """The workspace as the attempt left it; the owner of the result removes it."""
    late: bool = False
    """Whether an `infra` attempt ended because the model server answered too late."""

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the changes until the end of the `with` block, which removes them."""
        try:
            yield
        finally:
            if self.changes is not None:
                self.changes.remove()


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutResult:
    """The result of a rollout's last attempt."""

    identity: Identity
    outcome: Outcome
    reason: str
    """Why the outcome is not `ok`; '' if it is."""
    rewards: dict[str, float]
    """The reward function's values by name; empty if it was not called."""
    seconds: float
    """Wall time."""
    llm_calls: int
    """Calls that the gateway answered."""
    tokens: int = 0
    """Tokens that the policy sampled in them."""
    spans: int = 0
    """Spans that the runner and the gateway ended for the attempt, without their reports."""


class WaveResult(list[RolloutResult]):
    """The results of one `Runner.run`, in the order in which the rollouts ended."""

    @property
    def outcomes(self) -> dict[str, int]:
        """Number of rollouts by outcome."""
        return dict(Counter(result.outcome.value for result in self))

    def means(self) -> dict[str, float]:
        """Return each reward's mean over the counted rollouts; one without a value counts as 0."""
        counting = [result for result in self if result.outcome in COUNTED_OUTCOMES]
        names = sorted({name for result in counting for name in result.rewards})
        return {
            name: sum(result.rewards.get(name, 0.0) for result in counting) / len(counting)
            for name in names
        }


def result_of_death(attempt: Attempt, description: str, *, shared: bool = False) -> AttemptResult:
    """Return the result of an attempt whose process died.

    The death is the agent's error, unless the kernel killed a process for lack of memory during the
    attempt, or other attempts ran in the process. Then the rollout is tried once more in a process
    of its own.

    Args:
        attempt: the attempt that ran in the process.
        description: the process and its end, such as "its worker died".
        shared: whether another attempt ran in the process at any time during this one.
    """
    out_of_memory = count_oom_kills() > attempt.oom_kills
    if attempt.isolated or not (shared or out_of_memory):
        return AttemptResult(Outcome.ERROR, description)
    cause = "the kernel killed for memory meanwhile" if out_of_memory else "others ran in it"
    return AttemptResult(
        Outcome.INFRA, f"{description}; {cause}: it is tried again alone", died=True
    )
