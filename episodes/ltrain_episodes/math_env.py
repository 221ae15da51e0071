"""An environment of mathematics problems: a wrong answer may be corrected."""

from collections.abc import Callable, Mapping
from typing import Any, Self

from ltrain_episodes.environment import BaseEnv
from ltrain_episodes.math_reward import RewardOutput, math_reward_fn

RewardFunction = Callable[[Mapping[str, Any], str], RewardOutput]


class MathEnv(BaseEnv):
    """One problem; it ends with a right answer or after `max_attempts` answers."""

    def __init__(
        self,
        task: dict[str, Any],
        max_attempts: int = 2,
        reward_fn: RewardFunction = math_reward_fn,
    ) -> None:
        """Prepare a problem.

        Args:
            task: has the problem under `question` or `input`, and what `reward_fn` needs.
            reward_fn: judges an answer; a wrong one's `metadata["feedback"]`, if any, is what the
                agent observes before its next attempt.

        Raises:
            KeyError: when the task has no problem.
            ValueError: when there is no attempt.
        """
        if max_attempts < 1:
            raise ValueError(f"max_attempts={max_attempts}: at least 1 answer is needed")
        self.task, self.max_attempts, self._reward_fn = task, max_attempts, reward_fn
        self.current_attempt = 0
        self._question = task["question"] if "question" in task else task["input"]

    def reset(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the problem."""
        self.current_attempt = 0
        return {"question": self._question}, {}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Judge an answer; the observation is the judge's feedback, None without any."""
        self.current_attempt += 1
        judged = self._reward_fn(self.task, action)
        ended = judged.reward > 0 or self.current_attempt >= self.max_attempts
        info = {**judged.metadata, "is_correct": judged.is_correct}
        return info.get("feedback"), judged.reward, ended, False, info

    @classmethod
    def from_dict(cls, env_args: dict[str, Any]) -> Self:
        """Return the environment of a task; its key `max_attempts` is optional."""
        options = {"max_attempts": env_args["max_attempts"]} if "max_attempts" in env_args else {}
        return cls(env_args, **options)
