"""Make problems from templates, or read public ones: `python tasks.py`.

Without options it writes train.jsonl and val.jsonl. A number of a problem in `val` occurs in no
problem of `train`, and none of both is in the worked examples. `--data FILE --to FILE` writes the
problems of DeepScaleR's JSON or of GSM8K's jsonl as tasks.
"""

import argparse
import json
import random
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

QUESTION = "Which number is the largest: {} or {}?"
SIZES = {"three": 3, "four": 4}
"""How many numbers a problem has, by domain."""
WORKED = (23, 58, 41, 62, 35, 19, 84, 47, 31, 96, 27, 85, 64, 53)
"""The numbers of the worked examples in agent.py."""
TRAIN, VAL = 64, 96
"""Problems of each domain."""
FORMATS = {"DeepScaleR": ("problem", "answer", "solution"), "GSM8K": ("question", "answer")}
"""The fields of a problem in each public format."""


class BadData(ValueError):
    """A file of problems cannot be read."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A task."""

    id: str
    input: str
    answer: str
    domain: str
    solution: str = ""


def problems(seed: int = 0) -> tuple[list[Problem], list[Problem]]:
    """Make the problems of training and of validation."""
    chance = random.Random(seed)
    numbers = [number for number in range(10, 100) if number not in WORKED]
    chance.shuffle(numbers)
    half = len(numbers) // 2
    return _make(chance, numbers[:half], TRAIN), _make(chance, numbers[half:], VAL)


def _make(chance: random.Random, numbers: list[int], count: int) -> list[Problem]:
    """Return `count` problems of each domain; no two have the same numbers."""
    made: dict[frozenset[int], Problem] = {}
    domains = list(SIZES)
    while len(made) < count * len(domains):
        domain = domains[len(made) % len(domains)]
        drawn = chance.sample(numbers, SIZES[domain])
        if frozenset(drawn) not in made:
            *first, last = map(str, drawn)
            made[frozenset(drawn)] = Problem(
                id=f"{domain}-{'-'.join([*first, last])}",
                input=QUESTION.format(", ".join(first), last),
                answer=str(max(drawn)),
                domain=domain,
            )
    return list(made.values())


def read_problems(file: Path) -> list[Problem]:
    """Read the JSON of DeepScaleR or the jsonl of GSM8K.

    Raises:
        BadData: with the line and the field.
    """
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise BadData(
            f"Cannot read {file}: {error.strerror or error}. Name a file of DeepScaleR or GSM8K."
        ) from error
    rows = _array(file, text) if text.lstrip().startswith("[") else _lines(file, text)
    made = [_parse(file, place, row, number) for number, (place, row) in enumerate(rows, 1)]
    if not made:
        raise BadData(f"{file} has no problem. Name a file of DeepScaleR or GSM8K.")
    return made


def _lines(file: Path, text: str) -> Iterator[tuple[int, Any]]:
    """Yield each object with its line."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield number, _decode(file, line, 0, number)[0]


def _array(file: Path, text: str) -> Iterator[tuple[int, Any]]:
    """Yield each element of a JSON array with the line on which it begins."""
    gap, position = re.compile(r"\s*,?\s*"), text.index("[") + 1
    while True:
        position = gap.match(text, position).end()  # type: ignore[union-attr]  # matches ""
        line = text.count("\n", 0, position) + 1
        if text[position : position + 1] == "]":
            return
        row, position = _decode(file, text, position, line)
        yield line, row


def _decode(file: Path, text: str, position: int, line: int) -> tuple[Any, int]:
    try:
        return json.JSONDecoder().raw_decode(text, position)
    except ValueError as error:
        raise BadData(
            f"{file}, line {line}: not JSON ({error}). DeepScaleR has an array of objects, "
            "GSM8K one object a line."
        ) from error


def _parse(file: Path, line: int, row: Any, number: int) -> Problem:
    place = f"{file}, line {line}"
    if not isinstance(row, dict):
        raise BadData(f"{place}: {row!r:.40} is no object. Write one object for each problem.")
    name = "GSM8K" if "question" in row and "problem" not in row else "DeepScaleR"
    texts = {field: _text(place, row, field, name) for field in FORMATS[name]}
    problem = Problem(
        id=f"{file.stem}-{number}",
        input=texts["question" if name == "GSM8K" else "problem"],
        answer=texts["answer"],
        domain=name.lower(),
        solution=texts.get("solution", texts["answer"]),
    )
    return _with_last_number(place, problem) if name == "GSM8K" else problem


def _text(place: str, row: dict[str, Any], field: str, name: str) -> str:
    value = row.get(field)
    if isinstance(value, int | float) and not isinstance(value, bool) and field == "answer":
        value = str(value)
    if not isinstance(value, str) or (not value.strip() and field != "solution"):
        found = f"is {value!r:.40}" if field in row else "is missing"
        raise BadData(
            f"{place}: the field '{field}' {found}. {name} has the texts "
            f"{', '.join(FORMATS[name])} in each problem."
        )
    return value


def _with_last_number(place: str, problem: Problem) -> Problem:
    """Return a problem of GSM8K with the number after `####` as its answer."""
    steps, found, answer = problem.answer.rpartition("####")
    if not found or not answer.strip():
        raise BadData(
            f"{place}: the field 'answer' has no '#### NUMBER' at its end. GSM8K ends with one."
        )
    return Problem(
        problem.id, problem.input, answer.strip(), problem.domain, solution=steps.strip()
    )


def write(file: Path, made: Iterable[Problem]) -> None:
    """Write problems as tasks."""
    rows = [json.dumps(asdict(problem), ensure_ascii=False) for problem in made]
    file.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    print(f"{file.name}: {len(rows)} problems")


def main() -> None:
    """Write both files beside this module, or the tasks of a public file."""
    parser = argparse.ArgumentParser(description="Make the problems, or read public ones.")
    parser.add_argument("--data", type=Path, help="DeepScaleR's JSON or GSM8K's jsonl")
    parser.add_argument("--to", type=Path, default=Path("tasks.jsonl"), help="the tasks of --data")
    parser.add_argument("--seed", type=int, default=0, help="of the generated problems")
    arguments = parser.parse_args()
    if arguments.data is not None:
        try:
            write(arguments.to, read_problems(arguments.data))
        except BadData as error:
            sys.exit(str(error))
        return
    for name, made in zip(("train", "val"), problems(arguments.seed), strict=True):
        write(Path(__file__).with_name(f"{name}.jsonl"), made)


if __name__ == "__main__":
    main()
