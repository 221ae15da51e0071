"""A taskset of verifiers: word problems that need one use of a calculator, and so two turns."""

import random
import re
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf

from word_problems.harness import TwoTurnHarness
from word_problems.tools import Calculator, CalculatorConfig

__all__ = ["TwoTurnHarness", "WordProblems"]

ANSWER = re.compile(r"-?\d+")
TEMPLATES = (
    ("A box has {a} pens. How many pens are in {b} boxes?", lambda a, b: a * b),
    ("Each of {b} rows has {a} seats. How many seats are there?", lambda a, b: a * b),
    ("Ana has {a} stamps and finds {b} more. How many has she now?", lambda a, b: a + b),
    ("A shop has {a} cups and sells {b} of them. How many are left?", lambda a, b: a - b),
)
"""Questions, and the right answer to each."""


class ProblemData(vf.TaskData):
    answer: int


class Problem(vf.Task[ProblemData]):
    @vf.reward
    async def right(self, trace: Any) -> float:
        """Return 1 if the last number of the last reply is the answer."""
        numbers = ANSWER.findall(trace.last_reply)
        return float(bool(numbers) and int(numbers[-1]) == self.data.answer)

    @vf.metric
    async def calculated(self, trace: Any) -> float:
        return float(trace.num_turns > 1)


class ProblemsConfig(vf.TasksetConfig):
    count: int = 512
    seed: int = 0
    tools: CalculatorConfig = CalculatorConfig()


class WordProblems(vf.Taskset[Problem, ProblemsConfig]):
    def load(self) -> Iterator[Problem]:
        drawn = random.Random(self.config.seed)
        for _ in range(self.config.count):
            question, solve = drawn.choice(TEMPLATES)
            a, b = drawn.randint(50, 99), drawn.randint(11, 49)
            data = ProblemData(prompt=question.format(a=a, b=b), answer=solve(a, b))
            yield Problem(data, self.config.task)

    @classmethod
    def toolsets(cls, config: ProblemsConfig) -> list[vf.Toolset]:
        return [Calculator(config.tools)]
