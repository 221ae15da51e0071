"""An environment: it sets the problem, judges each action and says when the episode ends.

The interface is Gymnasium's, with `from_dict` of rLLM. An environment of Gymnasium itself runs
unchanged, and so does one of rLLM, whose `step` returns four values.
"""

from abc import ABC, abstractmethod
from typing import Any, Self

from ltrain_instrument.errors import LtrainError


class BadEnvironment(LtrainError, ValueError):
    """An environment returned what its interface does not allow."""


class BaseEnv(ABC):
    """The problem of one episode."""

    @abstractmethod
    def reset(self) -> tuple[Any, dict[str, Any]]:
        """Begin an episode and return the first observation, and further information.

        With several agents, `info["agent"]` names the one that acts first.
        """

    @abstractmethod
    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take an action and return (observation, reward, terminated, truncated, info).

        With several agents, `info["agent"]` names the one that acts next and sees the observation,
        and the reward is that of the acting agent, or a dict of rewards by agent.
        """

    def close(self) -> None:
        """Free what the episode holds; by default nothing."""
        return

    @classmethod
    @abstractmethod
    def from_dict(cls, env_args: dict[str, Any]) -> Self:
        """Return the environment of a task."""
