"""An agent of a conversation: observations are the user's messages, responses are actions."""

from collections.abc import Sequence
from typing import Any

from ltrain_episodes.agent import BaseAgent, Message, Step, Trajectory


class TextAgent(BaseAgent):
    """Keeps the conversation; a subclass says how observations and actions are written."""

    def __init__(self, instruction: str = "", examples: Sequence[Message] = ()) -> None:
        """Prepare an agent.

        Args:
            instruction: the system message; empty: none.
            examples: worked examples, as turns before the conversation.
        """
        self._instruction, self._examples = instruction, tuple(examples)
        self.reset()

    def write_observation(self, observation: Any, info: dict[str, Any]) -> str:
        """Return the message of an observation; by default its text."""
        return str(observation)

    def read_action(self, response: str) -> Any:
        """Return the action of a response; by default its text."""
        return response

    def reset(self) -> None:
        """Forget the conversation."""
        self._trajectory = Trajectory()
        self._messages: list[Message] = []
        if self._instruction:
            self._messages.append({"role": "system", "content": self._instruction})
        self._messages += self._examples
        self._observation: Any = None

    def update_from_env(
        self, observation: Any, reward: float, done: bool, info: dict[str, Any], **kwargs: Any
    ) -> None:
        """Complete the last step, and add the observation to the conversation."""
        if self._trajectory.steps:
            step = self._trajectory.steps[-1]
            step.reward, step.done, step.info = step.reward + reward, done, info
        if not done:
            self._observation = observation
            text = self.write_observation(observation, info)
            self._messages.append({"role": "user", "content": text})

    def update_from_model(self, response: str, **kwargs: Any) -> Any:
        """Add the response to the conversation, and return its action."""
        self._messages.append({"role": "assistant", "content": response})
        step = Step(self._observation, response, self.read_action(response))
        step.chat_completions = self.chat_completions
        self._trajectory.steps.append(step)
        return step.action

    @property
    def chat_completions(self) -> list[Message]:
        """The conversation."""
        return list(self._messages)

    @property
    def trajectory(self) -> Trajectory:
        """The steps so far."""
        return self._trajectory
