"""An agent: it turns observations into messages, and the model's responses into actions.

The interface is that of rLLM's `BaseAgent`, whose agents run here unchanged.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
"""A chat message as OpenAI's API has it: `role` and `content`."""


@dataclass(slots=True)
class Step:
    """One response of the model, and what the environment made of it."""

    observation: Any = None
    """The observation before the action."""
    model_response: str = ""
    action: Any = None
    reward: float = 0.0
    done: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    chat_completions: list[Message] = field(default_factory=list)
    """The messages up to this response."""


@dataclass(slots=True)
class Trajectory:
    """The steps of one agent in one episode."""

    steps: list[Step] = field(default_factory=list)

    @property
    def reward(self) -> float:
        """The sum of the rewards of the steps."""
        return sum(step.reward for step in self.steps)


@dataclass(frozen=True, slots=True)
class Action:
    """The interface of an agent; `update_from_model` may also return the action itself."""

    action: Any = None


class BaseAgent(ABC):
    """Keeps the state of an agent between its calls of the model."""

    @abstractmethod
    def update_from_env(
        self, observation: Any, reward: float, done: bool, info: dict[str, Any], **kwargs: Any
    ) -> None:
        """Take what the environment returned: the problem first, then the result of each action."""

    @abstractmethod
    def update_from_model(self, response: str, **kwargs: Any) -> Any:
        """Take the model's response and return the action.

        If it returns None, the action is that of the last step of the trajectory.
        """

    @abstractmethod
    def reset(self) -> None:
        """Forget everything; a new episode begins."""

    @property
    @abstractmethod
    def chat_completions(self) -> list[Message]:
        """The messages for the model's next call."""

    @property
    @abstractmethod
    def trajectory(self) -> Trajectory:
        """The steps so far."""
