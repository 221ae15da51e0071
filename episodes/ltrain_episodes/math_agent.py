"""An agent for mathematics problems that corrects itself."""

import re
from collections.abc import Sequence
from typing import Any

from ltrain_episodes.agent import Message
from ltrain_episodes.text_agent import TextAgent

THINKING = re.compile(r"<think>.*?</think>\s*", re.DOTALL)


class MathAgent(TextAgent):
    """Asks for an answer in a box, and for another one after a wrong answer."""

    INSTRUCTION = r"Let's think step by step, and put the final answer within \boxed{}."
    CORRECTION = (
        "Your previous answer may contain a mistake. Review it, and put the final answer within "
        r"\boxed{}."
    )

    def __init__(self, accumulate_thinking: bool = True, examples: Sequence[Message] = ()) -> None:
        """Prepare an agent.

        Args:
            accumulate_thinking: whether the model sees its earlier `<think>` parts.
            examples: worked examples, as turns before the problem.
        """
        self.accumulate_thinking = accumulate_thinking
        super().__init__(examples=examples)

    def write_observation(self, observation: Any, info: dict[str, Any]) -> str:
        """Return the question, or the environment's feedback and the request for a correction."""
        if self.trajectory.steps:
            return f"{observation} {self.CORRECTION}" if observation else self.CORRECTION
        return f"{observation['question']} {self.INSTRUCTION}"

    @property
    def chat_completions(self) -> list[Message]:
        """The conversation; without earlier thinking unless it accumulates."""
        if self.accumulate_thinking:
            return super().chat_completions
        return [*map(_without_thinking, self._messages[:-1]), *self._messages[-1:]]


def _without_thinking(message: Message) -> Message:
    if message["role"] != "assistant":
        return message
    return {**message, "content": THINKING.sub("", message["content"])}
