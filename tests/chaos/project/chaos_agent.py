"""An agent with two calls that runs long enough to be killed between them."""

import random
import time
from functools import cache
from typing import Any

from openai import OpenAI

PAUSE = 0.3
"""Seconds between its calls, and after them."""


@cache
def root() -> OpenAI:
    """Return the client whose connections all rollouts of this process share."""
    return OpenAI(base_url="http://127.0.0.1", api_key="-", max_retries=0, timeout=600)


def solve(task: dict[str, Any], llm: Any) -> dict[str, Any]:
    client = root().with_options(base_url=llm.base_url, api_key=llm.api_key)
    answers = []
    for _ in range(2):
        answer = client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": task["input"]}], max_tokens=16
        )
        answers.append(answer.choices[0].message.content)
        time.sleep(PAUSE)
    return {"answers": answers, "draw": random.randrange(2)}


def score(task: dict[str, Any], result: dict[str, Any]) -> float:
    """Return 0.5 or 1.0; any other reward in the store would have another source."""
    assert result["answers"] == [task["input"]] * 2
    return 0.5 + 0.5 * float(result["draw"])
