"""An agent that may correct itself: the environment judges each answer and names a wrong one.

Agent and environment are those of `ltrain_episodes`, which is all that is imported of ltrain. To
run it alone, on the first held-out problem and against any OpenAI-compatible server:

    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 opentelemetry-instrument \\
        python agent.py "$(head -1 val.jsonl)"
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ltrain_episodes import MathAgent, MathEnv, Message, RewardOutput, math_reward_fn, solve_with

ATTEMPTS = 2
"""Answers to a problem: the first one and a correction."""
WORKED = (
    ("Which number is the largest: 23, 58 or 41?", "58"),
    ("Which number is the largest: 62, 35, 19 or 84?", "35", "84"),
    ("Which number is the largest: 47, 31 or 96?", "47", "96"),
    ("Which number is the largest: 27, 85, 64 or 53?", "85"),
)
"""Question and answers of the worked examples in the context; the first of two is wrong."""
FEEDBACK = "{} is not the answer."


class ShortMathAgent(MathAgent):
    """Asks for the answer alone: a model of this size gains nothing from steps before it."""

    INSTRUCTION = r"Put the final answer within \boxed{}."
    CORRECTION = INSTRUCTION


def worked_examples() -> list[Message]:
    """Return the turns of the worked examples, as the agent and its environment word them."""
    turns: list[Message] = []
    for question, *answers in WORKED:
        for number, answer in enumerate(answers):
            observation = FEEDBACK.format(answers[number - 1]) if number else question
            request = f"{observation} {ShortMathAgent.INSTRUCTION}"
            turns += [
                {"role": "user", "content": request},
                {"role": "assistant", "content": rf"\boxed{{{answer}}}"},
            ]
    return turns


def judge(task: Mapping[str, Any], action: str) -> RewardOutput:
    """Return the reward of `math_reward_fn`, with a feedback that names a wrong answer."""
    judged = math_reward_fn(task, action)
    if judged.is_correct:
        return judged
    feedback = FEEDBACK.format(judged.metadata.get("answer", "This"))
    return replace(judged, metadata={**judged.metadata, "feedback": feedback})


def make_agent() -> MathAgent:
    """Return an agent with the worked examples in its context."""
    return ShortMathAgent(examples=worked_examples())


def make_environment(task: dict[str, Any]) -> MathEnv:
    """Return the environment of a task, which needs `input` and `answer`."""
    return MathEnv(task, max_attempts=ATTEMPTS, reward_fn=judge)


solve = solve_with(make_agent, make_environment, temperature=0, max_tokens=16)
"""Solves a task of train.jsonl with a short answer."""
reason = solve_with(MathAgent, MathEnv, temperature=0, max_tokens=4096)
"""Solves any problem with steps before the answer, without worked examples: for gpu.toml."""


@dataclass(frozen=True, slots=True)
class EnvironmentEndpoint:
    """The endpoint that the OPENAI_* variables name."""

    base_url: str
    api_key: str
    model: str


def main(arguments: list[str]) -> None:
    """Solve the task on the command line, else that in LTRAIN_TASK, and print JSON."""
    if not arguments and "LTRAIN_TASK" not in os.environ:
        sys.exit("""usage: python agent.py '{"input": "What is 2 + 2?", "answer": "4"}'""")
    task = json.loads(" ".join(arguments) or os.environ["LTRAIN_TASK"])
    endpoint = EnvironmentEndpoint(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        model=os.environ.get("OPENAI_MODEL", "self_correction"),
    )
    print(json.dumps(solve(task, endpoint)))


if __name__ == "__main__":
    main(sys.argv[1:])
