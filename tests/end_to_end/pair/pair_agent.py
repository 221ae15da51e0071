"""Three agents that answer the same question with one word, each with a policy of its own."""

from functools import cache
from typing import Any

from openai import OpenAI

AGENTS = ("low", "high", "still")


@cache
def root() -> OpenAI:
    """Return the client whose connections all rollouts of this process share."""
    return OpenAI(base_url="http://127.0.0.1", api_key="-", max_retries=0)


def solve(task: dict[str, Any], llm: Any) -> dict[str, int]:
    ask = root().with_options(base_url=llm.base_url, api_key=llm.api_key)
    words = {}
    for policy in AGENTS:
        answer = ask.chat.completions.create(
            model=policy, messages=[{"role": "user", "content": task["input"]}], max_tokens=1
        )
        text = (answer.choices[0].message.content or "").strip()
        words[policy] = int(text[1:]) if text.startswith("w") and text[1:].isdigit() else -1
    return words
