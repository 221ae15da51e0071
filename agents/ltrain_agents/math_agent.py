"""An agent for mathematics problems that corrects itself."""

import re
from typing import Any

from ltrain_agents.agent import BaseAgent, Message, Step, Trajectory

THINKING = re.compile(r"<think>.*?</think>\s*", re.DOTALL)


class MathAgent(BaseAgent):
    """Asks for an answer in a box, and for another one after a wrong answer."""

    INSTRUCTION = r"Let's think step by step, and put the final answer within \boxed{}."
    CORRECTION = (
        "Your previous answer may contain a mistake. Review it, and put the final answer within "
        r"\boxed{}."
    )

    def __init__(self, accumulate_thinking: bool = True) -> None:
        """Prepare an agent.

        Args:
            accumulate_thinking: whether the model sees its earlier `<think>` parts.
        """
        self.accumulate_thinking = accumulate_thinking
        self.reset()

    def reset(self) -> None:
        """Forget the conversation."""
        self._trajectory = Trajectory()
        self._messages: list[Message] = []
        self._observation: Any = None

    def update_from_env(
        self, observation: Any, reward: float, done: bool, info: dict[str, Any], **kwargs: Any
    ) -> None:
        """Ask the question, or for a correction."""
        if self._trajectory.steps:
            step = self._trajectory.steps[-1]
            step.reward, step.done, step.info = reward, done, info
        if done:
            return
        self._observation = observation
        if self._trajectory.steps:
            content = self.CORRECTION
        else:
            content = f"{observation['question']} {self.INSTRUCTION}"
        self._messages.append({"role": "user", "content": content})

    def update_from_model(self, response: str, **kwargs: Any) -> str:
        """Return the response, which is the action."""
        self._messages.append({"role": "assistant", "content": response})
        self._trajectory.steps.append(
            Step(
                observation=self._observation,
                model_response=response,
                action=response,
                chat_completions=self.chat_completions,
            )
        )
        return response

    @property
    def chat_completions(self) -> list[Message]:
        """The conversation; without earlier thinking unless it accumulates."""
        if self.accumulate_thinking:
            return list(self._messages)
        last = len(self._messages) - 1
        return [
            message if place == last or message["role"] != "assistant" else _without(message)
            for place, message in enumerate(self._messages)
        ]

    @property
    def trajectory(self) -> Trajectory:
        """The answers so far."""
        return self._trajectory


def _without(message: Message) -> Message:
    return {**message, "content": THINKING.sub("", message["content"])}
