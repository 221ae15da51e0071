"""`skyrl-gym:ENV_CLASS`: a text environment of SkyRL, with rows of its data set as tasks."""

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import skyrl_gym

from ltrain_episodes.environment import BadEnvironment
from ltrain_episodes.environments.chat import Turn, converse
from ltrain_episodes.environments.task_environment import Scores, Task, task_id


class SkyRLGym:
    """A class of environments of SkyRL.

    Args:
        name: a registered class, such as `gsm8k_multi_turn`.
        file: JSONL file of rows as SkyRL's data sets have them: `prompt` (messages), `reward_spec`
            and what else the class reads.
        config: the `env_config` of the class.
        request: further fields of the requests to the model.
    """

    agents = ()

    def __init__(
        self,
        name: str,
        *,
        file: str,
        config: Mapping[str, Any] | None = None,
        request: Mapping[str, Any] | None = None,
    ) -> None:
        self._name, self._file, self._config, self._request = name, Path(file), config, request

    def tasks(self, limit: int | None) -> Iterator[Task]:
        try:
            lines = self._file.read_text().splitlines()
        except OSError as error:
            raise BadEnvironment(
                f"Cannot read the rows of skyrl-gym from {self._file}: {error}"
            ) from error
        for line in islice(filter(str.strip, lines), limit):
            row = json.loads(line)
            name = task_id(json.dumps(row, sort_keys=True))
            yield {"id": name, "input": row.pop("prompt"), "row": row}

    async def attempt(self, task: Task, llm: Any) -> Scores:
        extras = {key: value for key, value in task["row"].items() if key != "env_class"}
        env = skyrl_gym.make(self._name, env_config=self._config, extras=extras)
        messages, _ = env.init(list(task["input"]))

        def step(answer: str) -> Turn:
            # `postprocessed_action` is not used: the policy sees what it wrote, token by token
            output = env.step(answer)
            return output["observations"], float(output["reward"]), bool(output["done"])

        try:
            rewards = await converse(self._name, messages, step, llm, self._request)
        finally:
            env.close()
        metrics = {
            key: float(value)
            for key, value in env.get_metrics().items()
            if isinstance(value, int | float)
        }
        return Scores({"return": sum(rewards)}, metrics=metrics)
