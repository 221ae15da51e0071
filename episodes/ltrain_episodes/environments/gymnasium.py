"""`gymnasium:ID`: an environment of Gymnasium whose observations are read as text."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium

from ltrain_episodes.environments.chat import Turn, converse, opening
from ltrain_episodes.environments.task_environment import Scores, Task

EPISODES = 100
"""Tasks of an environment, one for each seed."""


class Gymnasium:
    """An environment of Gymnasium; a task is a seed.

    Args:
        name: the id of the environment, such as `FrozenLake-v1`.
        episodes: number of tasks.
        seed: seed of the first task.
        instruction: the system message, which says what an action is.
        request: further fields of the requests to the model.
        make: keyword arguments of `gymnasium.make`.
    """

    agents = ()

    def __init__(
        self,
        name: str,
        *,
        episodes: int = EPISODES,
        seed: int = 0,
        instruction: str = "",
        request: Mapping[str, Any] | None = None,
        make: Mapping[str, Any] | None = None,
    ) -> None:
        self._name, self._seeds = name, range(seed, seed + episodes)
        self._instruction, self._request, self._make = instruction, request, make or {}
        self._open().close()

    def tasks(self, limit: int | None) -> Iterator[Task]:
        env = self._open()
        for seed in self._seeds[:limit]:
            observation, _ = env.reset(seed=seed)
            yield {"id": f"{self._name}-{seed}", "input": str(observation), "seed": seed}
        env.close()

    async def attempt(self, task: Task, llm: Any) -> Scores:
        env = self._open()
        observation, _ = env.reset(seed=task["seed"])
        messages = opening(self._instruction, {"role": "user", "content": str(observation)})

        def step(answer: str) -> Turn:
            observation, reward, terminated, truncated, _ = env.step(_action(env, answer))
            added = [{"role": "user", "content": str(observation)}]
            return added, float(reward), bool(terminated or truncated)

        try:
            rewards = await converse(self._name, messages, step, llm, self._request)
        finally:
            env.close()
        return Scores({"return": sum(rewards)}, metrics={"steps": len(rewards)})

    def _open(self) -> "gymnasium.Env[Any, Any]":
        return gymnasium.make(self._name, **self._make)


def _action(env: "gymnasium.Env[Any, Any]", answer: str) -> Any:
    """Return the action of an answer: of a discrete space the first number in it, else its text.

    An answer without a number of the space is the space's first action.
    """
    space = env.action_space
    if not isinstance(space, gymnasium.spaces.Discrete):
        return answer
    found = re.search(r"-?\d+", answer)
    action = int(found[0]) if found else int(space.start)
    return action if space.contains(action) else int(space.start)
