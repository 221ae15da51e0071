"""Model calls for an environment that makes none itself: one call, or a conversation of turns."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ltrain_episodes.agent import Message
from ltrain_episodes.environment import BadEnvironment
from ltrain_episodes.episode import MAX_STEPS, agent_span, record_step, step_span

Turn = tuple[Sequence[Message], float, bool]
"""The messages after an action, its reward, and whether the episode has ended."""


def opening(instruction: str, *turns: Message) -> list[Message]:
    """Return the messages before the first call: the system message, if there is one, and turns."""
    system: list[Message] = [{"role": "system", "content": instruction}] if instruction else []
    return [*system, *turns]


async def complete(
    llm: Any, messages: Sequence[Message], request: Mapping[str, Any] | None = None
) -> str:
    """Return the text of the model's answer.

    Args:
        llm: has `base_url`, `api_key` and `model`.
        request: further fields of the request, such as `max_tokens`.
    """
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=llm.base_url, api_key=llm.api_key) as client:
        response = await client.chat.completions.create(
            model=llm.model,
            messages=list(messages),  # type: ignore[arg-type]
            **(request or {}),
        )
    return response.choices[0].message.content or ""


async def converse(
    name: str,
    messages: Sequence[Message],
    step: Callable[[str], Turn],
    llm: Any,
    request: Mapping[str, Any] | None = None,
) -> list[float]:
    """Play an episode of turns, and return the reward of each.

    Args:
        name: the environment's name: each of its steps is a tool call of this name.
        messages: the conversation before the first call.
        step: takes an answer; it runs in a thread, because it may wait.

    Raises:
        BadEnvironment: when the environment does not end the episode.
    """
    conversation, rewards = list(messages), list[float]()
    for _ in range(MAX_STEPS):
        with agent_span(name):
            answer = await complete(llm, conversation, request)
            with step_span(name, answer) as span:
                added, reward, done = await asyncio.to_thread(step, answer)
                record_step(span, [*added], reward)
        rewards.append(reward)
        conversation += [{"role": "assistant", "content": answer}, *added]
        if done:
            return rewards
    raise BadEnvironment(f"'{name}' did not end the episode in {MAX_STEPS} turns.")
