"""`inspect:FILE@TASK`: a task of Inspect, with its solver and its scorers.

One process runs one evaluation at a time, because Inspect cannot run two: `workers` of the recipe
says how many attempts run. A grader's calls are those of the agent `grader`; they are not trained.
"""

import asyncio
import tempfile
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from inspect_ai import Task as InspectTask
from inspect_ai import eval_async
from inspect_ai.log import EvalLog
from inspect_ai.model import GenerateConfig, Model, get_model
from inspect_ai.scorer import value_to_float

from ltrain_episodes.environment import BadEnvironment
from ltrain_episodes.environments.task_environment import Scores, Task
from ltrain_instrument.identity import AGENT_HEADER

AGENT, GRADER = "agent", "grader"


class Inspect:
    """A task of Inspect.

    Args:
        name: `FILE.py@TASK`, or the name of a registered task.
        args: arguments of the task's function.
        generate: fields of `GenerateConfig` for the policy's calls.
    """

    agents = (AGENT,)

    def __init__(
        self,
        name: str,
        *,
        args: Mapping[str, Any] | None = None,
        generate: Mapping[str, Any] | None = None,
    ) -> None:
        self._name, self._args, self._generate = name, dict(args or {}), dict(generate or {})
        self._turn = asyncio.Lock()
        self._samples = {str(each.id): each for each in self._load().dataset}

    def tasks(self, limit: int | None) -> Iterator[Task]:
        for name, sample in islice(self._samples.items(), limit):
            text = sample.input if isinstance(sample.input, str) else sample.input[-1].text
            yield {"id": name, "input": text}

    async def attempt(self, task: Task, llm: Any) -> Scores:
        policy = self._model(llm, AGENT, self._generate)
        roles = {GRADER: self._model(llm, GRADER, {})}
        with tempfile.TemporaryDirectory(prefix="ltrain-inspect-") as folder:
            async with self._turn:
                (log,) = await eval_async(
                    self._load(), model=policy, model_roles=roles, sample_id=task["id"],
                    log_dir=folder, log_level="error", retry_on_error=0,
                )  # fmt: skip
            return _scores(log)

    def _model(self, llm: Any, agent: str, generate: Mapping[str, Any]) -> Model:
        config = GenerateConfig(**generate, extra_headers={AGENT_HEADER: agent}, max_retries=0)
        return get_model(
            f"openai-api/ltrain/{llm.model}",
            config=config, base_url=llm.base_url, api_key=llm.api_key, memoize=False,
        )  # fmt: skip

    def _load(self) -> InspectTask:
        from inspect_ai._eval.loader import load_tasks  # the public functions only evaluate

        file, _, _ = self._name.partition("@")
        if file.endswith(".py") and not Path(file).exists():
            raise BadEnvironment(f"There is no file {file}. Write FILE.py@TASK.")
        tasks = load_tasks([self._name], self._args)
        if len(tasks) != 1:
            raise BadEnvironment(f"'{self._name}' names {len(tasks)} tasks of Inspect, not one.")
        return tasks[0]


def _scores(log: EvalLog) -> Scores:
    """Return the scores of the one sample of an evaluation.

    Raises:
        BadEnvironment: when the sample failed; the message has Inspect's error.
    """
    samples = log.samples or []
    error = samples[0].error if samples else log.error
    if error is not None or not samples:
        raise BadEnvironment(f"The episode failed: {error.message if error else log.status}")
    read = value_to_float()
    scores = samples[0].scores or {}
    return Scores({name: float(read(score.value)) for name, score in scores.items()})
