"""`verifiers:ENVIRONMENT` with a release of verifiers before 0.4: what `load_environment` returns.

- The environment's rubric scores an attempt; its functions are metrics, by their names.
- The policy's calls name the agent `policy`. A judge that finds no server of its own could call the
  policy with the attempt's key; such calls have no name, so they are not trained.
- An attempt has a client of its own, with its key.
"""

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, Literal

import verifiers as vf
from openai import AsyncOpenAI
from verifiers.clients import OpenAIChatCompletionsClient

from ltrain_episodes.environment import BadEnvironment
from ltrain_episodes.environments.task_environment import Scores, Task, task_id
from ltrain_instrument.identity import AGENT_HEADER

POLICY = "policy"
"""The agent of an environment's calls."""


class Verifiers:
    """An environment of verifiers before 0.4.

    Args:
        name: the module that has `load_environment`.
        split: `train` or `eval`, the data set whose rows are the tasks.
        request: sampling arguments of the requests to the model, such as `max_tokens`.
        options: the arguments of `load_environment`.
    """

    agents = (POLICY,)

    def __init__(
        self,
        name: str,
        *,
        split: Literal["train", "eval"] = "train",
        request: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        try:
            with _own_signals():
                self._env = vf.load_environment(name, **options)
        except (ImportError, AttributeError, ValueError, RuntimeError) as error:
            raise BadEnvironment(f"verifiers cannot load '{name}': {error}") from error
        self._name, self._split, self._request = name, split, request

    def tasks(self, limit: int | None) -> Iterator[Task]:
        for row in islice(self._rows(), limit):
            content = {key: value for key, value in row.items() if key != "example_id"}
            name = task_id(json.dumps(content, sort_keys=True, default=str))
            yield {"id": name, "input": row["prompt"], "row": dict(row)}

    def _rows(self) -> Any:
        if self._split == "train":
            return self._env.get_dataset()
        if self._env.eval_dataset is None and self._env.eval_dataset_source is None:
            raise BadEnvironment(
                f"The environment '{self._name}' has no data set for evaluations, and verifiers "
                "would return the tasks to train on. Remove `held_out_options`: a share of the "
                "tasks is held out then."
            )
        return self._env.get_eval_dataset()

    async def attempt(self, task: Task, llm: Any) -> Scores:
        async with AsyncOpenAI(
            base_url=llm.base_url, api_key=llm.api_key, max_retries=0,
            default_headers={AGENT_HEADER: POLICY},
        ) as client:  # fmt: skip
            output = await self._env.run_rollout(
                task["row"], OpenAIChatCompletionsClient(client), llm.model,
                dict(self._request or {}),
            )  # fmt: skip
        if error := output.get("error"):
            raise BadEnvironment(f"The episode failed: {error['error_chain_str']}")
        metrics = {name: float(value) for name, value in (output.get("metrics") or {}).items()}
        return Scores({"rubric": float(output["reward"])}, metrics=metrics)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the signal handlers of this process: an environment of verifiers sets its own.

    Python refuses that in a worker's thread.
    """
    set_handler, signal.signal = signal.signal, lambda *_: None
    try:
        yield
    finally:
        signal.signal = set_handler
