"""The model of an agent: a function of messages that returns a text."""

from collections.abc import Callable, Sequence
from typing import Any

from ltrain_agents.agent import Message

ChatModel = Callable[[Sequence[Message]], str]


def chat_model(llm: Any, **options: Any) -> ChatModel:
    """Return the model behind an endpoint that the runner passes to an agent.

    Args:
        llm: has `base_url`, `api_key` and `model`.
        options: further fields of each request, e.g. `max_tokens=256`.
    """
    from openai import OpenAI

    client = OpenAI(base_url=llm.base_url, api_key=llm.api_key)

    def complete(messages: Sequence[Message]) -> str:
        response = client.chat.completions.create(
            model=llm.model,
            messages=list(messages),  # type: ignore[arg-type]
            **options,
        )
        return response.choices[0].message.content or ""

    return complete
