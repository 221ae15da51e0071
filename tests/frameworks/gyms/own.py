"""An environment of the protocol, without any package."""

from collections.abc import Iterator
from typing import Any

from ltrain_episodes.environments import Scores


class Endless:
    """Tasks without end; an attempt makes no call."""

    agents = ()

    def __init__(self, reward: str = "1.0") -> None:
        self.reward = float(reward)

    def tasks(self, limit: int | None) -> Iterator[dict[str, Any]]:
        number = 0
        while limit is None or number < limit:
            yield {"id": str(number // 2), "input": f"task {number // 2}"}
            number += 1

    async def attempt(self, task: Any, llm: Any) -> Scores:
        return Scores({"own": self.reward})
