"""An environment of verifiers before 0.4: sums with a tool, and a rubric of two functions."""

from typing import Any

import verifiers as vf
from datasets import Dataset


def load_environment(sums: int = 6, held_out: int = 2) -> vf.Environment:
    rows = [
        {"question": f"{n} + 2 = ? [[add(a={n},b=2); It is {n + 2 if n % 2 else 0}.]]",
         "answer": str(n + 2)}
        for n in range(sums + held_out)
    ]  # fmt: skip

    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return int(a) + int(b)

    async def right(completion: Any, answer: str) -> float:
        last = completion[-1]
        return float(answer in str(last["content"] if isinstance(last, dict) else last.content))

    async def used_tool(completion: Any) -> float:
        return float(len(completion) > 1)

    evaluated = {"eval_dataset": Dataset.from_list(rows[sums:])} if held_out else {}
    return vf.ToolEnv(
        dataset=Dataset.from_list(rows[:sums]),
        tools=[add],
        rubric=vf.Rubric(funcs=[right, used_tool], weights=[1.0, 0.5]),
        max_turns=4,
        **evaluated,
    )
