"""The interface, the values and the error of all sources of rewards."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

from ltrain_instrument.errors import LtrainError
from ltrain_instrument.feedback import to_score
from ltrain_train.rollout.tasks import Task
from ltrain_train.sandboxes import Changes

UNNAMED = "reward"
"""The name of a single value."""
MAX_CALLS = 3
"""Calls of a function or a command on one result."""
REWARD_TIMEOUT = 60.0
"""Seconds for all calls on one result."""
RETRY_PAUSE = 0.2
"""Seconds before the second call; before the third, twice as many."""


NO_SERVICES: Mapping[str, str] = MappingProxyType({})
"""The services of an agent that uses none."""


class RewardFailed(LtrainError, RuntimeError):
    """The source of rewards failed on a result, or returned something that cannot count."""


class RewardSource(Protocol):
    """A function, a command or a service that judges results; `score` may run in many threads."""

    digest: str
    """Hash of the known code of the judge."""

    def score(
        self,
        task: Task,
        result: Any,
        services: Mapping[str, str] = NO_SERVICES,
        changes: Changes | None = None,
    ) -> dict[str, float]:
        """Return the reward values by name; a single value is named `reward`.

        Args:
            services: addresses of the services that the agent used, by name.
            changes: what the attempt left in its workspace, if it had one.

        Raises:
            RewardFailed: when there is none in time.
        """

    def close(self) -> None:
        """End what the source started."""


def parse_values(value: Any) -> dict[str, float]:
    """Return the values by name of a number, or of numbers by name."""
    values = value if isinstance(value, Mapping) else {UNNAMED: value}
    return {str(name): _to_reward(value) for name, value in values.items()}


def _to_reward(value: Any) -> float:
    if isinstance(value, str):
        raise ValueError(f"{value[:200]!r} is a text, not a number")
    return to_score(value)  # bool, int, numpy's scalars
