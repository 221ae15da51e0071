"""The reward of an answer to a mathematics problem: whether the last `\\boxed{}` has the value.

Answers are compared as text without LaTeX's spacing, units of text, currency and percent signs, and
as exact numbers: integers, decimals, fractions. Nothing is evaluated: an expression such as
`9^9^9` costs nothing, and equal formulas in different forms are not equal.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

BOXED = "\\boxed{"
GOLD_KEYS = ("ground_truth", "answer", "gold")
"""Keys of a task that may hold the expected answer, in this order."""
MAX_ANSWER_CHARACTERS = 1000

_NOISE = re.compile(
    r"\\left|\\right|\\[,;:! ]|\\(?:text|mathrm|mbox)\{[^{}]*\}|\\?[$%]|\^\\circ|\s"
)
_FRACTION = re.compile(r"(-?)\\[dt]?frac\{(-?\d{1,50})\}\{(\d{1,50})\}")
_NUMBER = re.compile(r"[+-]?(?:\d{1,50}(?:\.\d{0,50})?|\.\d{1,50})(?:/\d{1,50})?")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class RewardOutput:
    """A judgement."""

    reward: float
    is_correct: bool
    metadata: dict[str, Any] = field(default_factory=dict)


def math_reward_fn(task: Mapping[str, Any], action: str) -> RewardOutput:
    """Return 1.0 for an answer with the expected value, and 0.0 for another one.

    Args:
        task: has the expected answer under `ground_truth`, `answer` or `gold`: a text or a number,
            or a list of them, one of which is expected.
        action: the model's response; its last `\\boxed{}` is the answer.

    Raises:
        KeyError: when the task has no expected answer.
    """
    expected = next((task[key] for key in GOLD_KEYS if task.get(key) is not None), None)
    if expected is None:
        raise KeyError(
            f"the task has none of the keys {', '.join(GOLD_KEYS)}. Add one to the task, and name "
            "it in agent_sees (--agent-sees): the environment is in the agent's process"
        )
    answer = last_boxed(action)
    if answer is None:
        return RewardOutput(0.0, False, {"error": "no \\boxed{} in the response"})
    choices = expected if isinstance(expected, list) else [expected]
    correct = any(_equal(answer, str(choice)) for choice in choices)
    return RewardOutput(float(correct), correct, {"answer": answer})


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last complete `\boxed{}`; None if there is none."""
    start = text.rfind(BOXED)
    while start >= 0:
        depth, begin = 1, start + len(BOXED)
        for place in range(begin, min(len(text), begin + MAX_ANSWER_CHARACTERS)):
            depth += (text[place] == "{") - (text[place] == "}")
            if depth == 0:
                return text[begin:place]
        start = text.rfind(BOXED, 0, start)
    return None


def _equal(answer: str, expected: str) -> bool:
    boxed = last_boxed(expected)
    texts = [_normalize(each) for each in (answer, expected if boxed is None else boxed)]
    numbers = [_number(each) for each in texts]
    return texts[0] == texts[1] or (numbers[0] is not None and numbers[0] == numbers[1])


def _normalize(text: str) -> str:
    text = _NOISE.sub("", text).rstrip(".")
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    return _FRACTION.sub(r"\1\2/\3", text)


def _number(text: str) -> Fraction | None:
    if _NUMBER.fullmatch(text) is None:
        return None
    above, _, below = text.partition("/")
    return None if below and int(below) == 0 else Fraction(above) / int(below or 1)
