"""`reasoning-gym:NAME`: a family of procedural tasks with its own scorer, one call a task."""

from collections.abc import Iterator, Mapping
from typing import Any

import reasoning_gym
from reasoning_gym.utils import SYSTEM_PROMPTS, extract_answer

from ltrain_episodes.agent import Message
from ltrain_episodes.environments.chat import complete, opening
from ltrain_episodes.environments.task_environment import Scores, Task, task_id

SIZE = 500
"""Tasks of a family, which is as large as one likes."""


class ReasoningGym:
    """A family of reasoning-gym.

    Args:
        name: a family, such as `chain_sum`.
        size: number of tasks; seeds repeat questions, so that fewer may be left.
        seed: seed of the family.
        system_prompt: a name of `reasoning_gym.utils.SYSTEM_PROMPTS`, or a text; the answer is what
            stands in `<answer>` tags, else the whole text.
        shots: worked examples before each question, as turns; they are tasks of the next seed.
        request: further fields of the request to the model, such as `max_tokens`.
        config: parameters of the family, such as `max_terms`.
    """

    agents = ()

    def __init__(
        self,
        name: str,
        *,
        size: int = SIZE,
        seed: int = 0,
        system_prompt: str = "DeepSeekZero",
        shots: int = 0,
        request: Mapping[str, Any] | None = None,
        **config: Any,
    ) -> None:
        self._family = reasoning_gym.create_dataset(name, size=size, seed=seed, **config)
        self._system_prompt = SYSTEM_PROMPTS.get(system_prompt, system_prompt)
        self._shots = list[Message]()
        if shots:
            examples = reasoning_gym.create_dataset(name, size=shots, seed=seed + 1, **config)
            self._shots = [turn for entry in examples for turn in _as_turns(entry)]
        self._request = request

    def tasks(self, limit: int | None) -> Iterator[Task]:
        for index in range(min(len(self._family), limit or len(self._family))):
            question = self._family[index]["question"]
            yield {"id": task_id(question), "input": question, "index": index}

    async def attempt(self, task: Task, llm: Any) -> Scores:
        entry = self._family[task["index"]]
        question = {"role": "user", "content": task["input"]}
        messages = opening(self._system_prompt, *self._shots, question)
        text = await complete(llm, messages, self._request)
        answer = extract_answer(text)
        score = self._family.score_answer(text if answer is None else answer, entry)
        return Scores({"score": float(score)})


def _as_turns(entry: Mapping[str, Any]) -> list[Message]:
    """Return a task and its answer as turns of a conversation."""
    answer = {"role": "assistant", "content": str(entry["answer"])}
    return [{"role": "user", "content": entry["question"]}, answer]
