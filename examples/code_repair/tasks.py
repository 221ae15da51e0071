"""Write train.jsonl, val.jsonl and the repositories of their tasks: python tasks.py.

A repository is one module with one function. Its doctest fails, because the function returns
another expression than the one that its name and its doctest mean.
"""

import argparse
import json
import random
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from functions import EXPRESSIONS, HELD_OUT, MODULES, evaluate

HERE = Path(__file__).parent
TRAIN, VAL = 64, 48
"""Repositories for training, and held-out ones."""
CASES = 4
"""Hidden cases of a function; none of them is its doctest."""


@dataclass(frozen=True)
class Task:
    """A task as a line of the file; its repository is the folder of its name."""

    id: str
    input: str
    module: str
    function: str
    cases: list[tuple[int, int]]
    """Arguments of the hidden cases."""
    expected: list[int]


def tasks(side: str, count: int, seed: int = 0) -> Iterator[tuple[Task, str]]:
    """Yield tasks and the sources of their modules; `side` is `train` or `val`."""
    modules = MODULES if side == "train" else HELD_OUT
    functions = [(module, *each) for module, own in modules.items() for each in own]
    drawn = random.Random(f"{side} {seed}")
    for number in range(count):
        module, name, a, b, right = functions[number % len(functions)]
        wrong = drawn.choice([each for each in EXPRESSIONS if each != right])
        cases = _distinct_cases(drawn, right, wrong)
        expected = [evaluate(right, *case) for case in cases]
        returned = EXPRESSIONS[wrong].format(a=a, b=b)
        (x, y), shown = cases[0], expected[0]
        source = (
            f"def {name}({a}, {b}):\n"
            f'    """\n    >>> {name}({x}, {y})\n    {shown}\n    """\n'
            f"    return {returned}\n"
        )
        text = f"{module}.py: {name}({x}, {y}) is {evaluate(wrong, x, y)}, should be {shown}."
        task = Task(f"{side}-{number}", text, module, name, cases[1:], expected[1:])
        yield task, source


def _distinct_cases(drawn: random.Random, right: str, wrong: str) -> list[tuple[int, int]]:
    """Return the case of the doctest, whose value tells all expressions apart, and hidden ones."""
    while True:
        case = drawn.randrange(2, 10), drawn.randrange(2, 10)
        values = [evaluate(each, *case) for each in EXPRESSIONS]
        if len(set(values)) == len(values):
            break
    hidden = [(drawn.randrange(10, 99), drawn.randrange(2, 99)) for _ in range(CASES - 1)]
    return [case, *hidden, (2, 50)]


def main(arguments: list[str]) -> None:
    """Write the files and the repositories."""
    parser = argparse.ArgumentParser(description="Write the tasks and their repositories.")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of the files")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    shutil.rmtree(options.out / "repositories", ignore_errors=True)
    for side, count in (("train", TRAIN), ("val", VAL)):
        lines = []
        for task, source in tasks(side, count, options.seed):
            folder = options.out / "repositories" / task.id
            folder.mkdir(parents=True)
            (folder / f"{task.module}.py").write_text(source)
            lines.append(json.dumps(asdict(task)) + "\n")
        (options.out / f"{side}.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    main(sys.argv[1:])
