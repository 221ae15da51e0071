"""`openenv:URL`: a server of OpenEnv whose actions have one field that a text can fill."""

import asyncio
import re
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
from openenv.core.generic_client import GenericEnvClient

from ltrain_episodes.environment import BadEnvironment
from ltrain_episodes.environments.chat import Turn, converse, opening
from ltrain_episodes.environments.task_environment import Scores, Task


class OpenEnv:
    """A server of OpenEnv.

    Args:
        name: the address of the server.
        split: the split of its tasks.
        observation: the field of an observation that has its text.
        action: the field of an action that gets the answer.
        pattern: regular expression of the answer's part that is the action; a match that is a
            number is sent as one. Unset: the whole answer is.
        instruction: the system message.
        request: further fields of the requests to the model.
    """

    agents = ()

    def __init__(
        self,
        name: str,
        *,
        split: str = "train",
        observation: str = "text",
        action: str = "text",
        pattern: str | None = None,
        instruction: str = "",
        request: Mapping[str, Any] | None = None,
    ) -> None:
        self._url, self._split = name.rstrip("/"), split
        self._observation, self._action = observation, action
        self._pattern = None if pattern is None else re.compile(pattern)
        self._instruction, self._request = instruction, request

    def tasks(self, limit: int | None) -> Iterator[Task]:
        try:
            known = httpx.get(f"{self._url}/list_environments").raise_for_status().json()
            first = known[0] if isinstance(known[0], str) else known[0]["name"]
            url = f"{self._url}/{first}/num_tasks"
            count = httpx.post(url, json={"split": self._split}).raise_for_status().json()
        except (httpx.HTTPError, ValueError, LookupError) as error:
            raise BadEnvironment(
                f"The OpenEnv server at {self._url} lists no tasks: {type(error).__name__}: "
                f"{error}. Start it, or name the address of one with tasks."
            ) from error
        total = count["num_tasks"] if isinstance(count, dict) else int(count)
        for index in range(total if limit is None else min(total, limit)):
            name = f"{self._split}-{index}"
            yield {"id": name, "input": name, "split": self._split, "index": index}

    async def attempt(self, task: Task, llm: Any) -> Scores:
        client = GenericEnvClient(base_url=self._url).sync()
        with client as env:
            place = {"split": task["split"], "index": task["index"]}
            opened = await asyncio.to_thread(lambda: env.reset(**place))
            messages = opening(self._instruction, self._message(opened))

            def step(answer: str) -> Turn:
                output = env.step({self._action: self._read(answer)})
                return [self._message(output)], float(output.reward or 0.0), bool(output.done)

            rewards = await converse("openenv", messages, step, llm, self._request)
        return Scores({"return": sum(rewards)}, metrics={"steps": len(rewards)})

    def _message(self, output: Any) -> dict[str, Any]:
        if self._observation not in output.observation:
            raise BadEnvironment(
                f"The observation has no field '{self._observation}'. Set `observation` in "
                f"[rollout.options] to one of: {', '.join(output.observation)}."
            )
        return {"role": "user", "content": str(output.observation[self._observation])}

    def _read(self, answer: str) -> str | int | float:
        """Return the action of an answer; an answer without a match is sent as it is."""
        found = self._pattern.search(answer) if self._pattern else None
        text = found[0] if found else answer
        for number in (int, float):
            try:
                return number(text) if found else text
            except ValueError:
                continue
        return text
