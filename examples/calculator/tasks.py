"""Make problems from templates, or read those of Calc-X: `python tasks.py`.

Without options it writes train.jsonl and val.jsonl. A name or a number of a problem in `val` occurs
in no problem of `train`. `--data FILE --to FILE` writes the problems of Calc-X's public files,
jsonl or parquet, as tasks.
"""

import argparse
import json
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

NAMES = (
    *("Ada", "Bela", "Cora", "Dana", "Egon", "Fay", "Gus", "Hana", "Ivo", "Jana", "Kai", "Lena"),
    *("Milo", "Nora", "Omar", "Pia", "Rafa", "Sara", "Tom", "Uma", "Viktor", "Wanda", "Yara"),
    "Zeno",
)
FACTORS, TERMS = range(12, 100), range(120, 990)
"""Numbers that are multiplied, and numbers that are added: results that nobody guesses."""
TRAIN, VAL = (15, 6), (16, 16)
"""Problems of each template with one step, and with two steps."""
GADGET = '<gadget id="calculator">{}</gadget>\n<output>{}</output>'
"""A step of a chain in Calc-X's format."""


class BadData(ValueError):
    """A file of problems cannot be read."""


@dataclass(frozen=True, slots=True)
class Template:
    kind: str
    question: str
    """`{x}`, `{y}` and `{z}` are numbers, and `{n}` is a name."""
    steps: tuple[str, ...]
    """Expressions in order; the last one is the result, and `{}` is the step before it."""
    numbers: str
    """What each number is: a factor `f`, a term `t`, or a term that `y` divides, `q`."""


TEMPLATES = (
    Template("boxes", "A box has {x} pens. How many pens are in {y} boxes?", ("{x} * {y}",), "ff"),
    Template(
        "price",
        "A ticket costs {x} dollars. {n} buys {y} tickets. How many dollars does {n} pay?",
        ("{x} * {y}",),
        "ff",
    ),
    Template(
        "gift",
        "{n} has {x} stamps and gets {y} more. How many stamps does {n} have now?",
        ("{x} + {y}",),
        "tt",
    ),
    Template(
        "days",
        "{n} drives {x} miles on Monday and {y} miles on Tuesday. How many miles is that?",
        ("{x} + {y}",),
        "tt",
    ),
    Template(
        "pages",
        "A book has {x} pages. {n} has read {y} pages. How many pages are left?",
        ("{x} - {y}",),
        "tt",
    ),
    Template(
        "eaten",
        "A shop has {x} apples and sells {y} of them. How many apples are left?",
        ("{x} - {y}",),
        "tt",
    ),
    Template(
        "share",
        "{n} shares {x} coins equally among {y} friends. How many coins does each friend get?",
        ("{x} / {y}",),
        "qf",
    ),
    Template(
        "teams",
        "{x} players form {y} equal teams. How many players are in a team?",
        ("{x} / {y}",),
        "qf",
    ),
    Template(
        "boxes_and",
        "{n} has {x} bags with {y} nuts each, and {z} nuts more. How many nuts does {n} have?",
        ("{x} * {y}", "{} + {z}"),
        "fft",
    ),
    Template(
        "both",
        "{n} picks {x} red and {y} green pears and sells each for {z} cents. "
        "How many cents does {n} get?",
        ("{x} + {y}", "{} * {z}"),
        "ttf",
    ),
    Template(
        "rest",
        "A hall has {x} rows of {y} chairs. {z} chairs are taken. How many chairs are free?",
        ("{x} * {y}", "{} - {z}"),
        "fft",
    ),
    Template(
        "sold_each",
        "{n} bakes {x} rolls, burns {y} of them and sells the others for {z} cents each. "
        "How many cents does {n} get?",
        ("{x} - {y}", "{} * {z}"),
        "ttf",
    ),
)


@dataclass(frozen=True, slots=True)
class Problem:
    """A task: Calc-X's columns, its `question` as the `input` of the agent."""

    id: str
    input: str
    domain: str
    """`one_step`, `two_step` or `more_steps`: the calculator calls of the chain."""
    chain: str
    result: str
    source_ds: str


def problems(seed: int = 0) -> tuple[list[Problem], list[Problem]]:
    """Make the problems of training and of validation."""
    chance = random.Random(seed)
    pools = [_halves(values, chance) for values in (NAMES, FACTORS, TERMS)]
    train, val = (_Maker(chance, *half) for half in zip(*pools, strict=True))
    training = list(train.make(TRAIN, frozenset()))
    return training, list(val.make(VAL, frozenset(_numbers(training))))


def _halves(values: Iterable[Any], chance: random.Random) -> tuple[list[Any], list[Any]]:
    shuffled = list(values)
    chance.shuffle(shuffled)
    return shuffled[: len(shuffled) // 2], shuffled[len(shuffled) // 2 :]


def _numbers(made: Iterable[Problem]) -> set[str]:
    return {number for problem in made for number in re.findall(r"\d+", problem.input)}


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes problems from the names and numbers of one side."""

    chance: random.Random
    names: list[str]
    factors: list[int]
    terms: list[int]

    def make(self, counts: tuple[int, int], taken: frozenset[str]) -> Iterator[Problem]:
        """Yield `counts` problems of each template without a number in `taken`."""
        for template in TEMPLATES:
            made: dict[str, Problem] = {}
            while len(made) < counts[len(template.steps) - 1]:
                problem = self._problem(template)
                if problem is not None and not taken & _numbers([problem]):
                    made[problem.id] = problem
            yield from made.values()

    def _problem(self, template: Template) -> Problem | None:
        """Return a problem; None if a result would be negative."""
        slots: dict[str, Any] = {"n": self.chance.choice(self.names)}
        slots |= dict(zip("xyz", self._draw(template.numbers), strict=False))
        steps, result = list[str](), 0
        for step in template.steps:
            expression = step.format(result, **slots)
            result = int(eval(expression))
            steps.append(GADGET.format(expression, result))
            if result <= 0:
                return None
        name = "-".join(str(slots[key]) for key in "xyz" if key in slots)
        return Problem(
            id=f"{template.kind}-{name}",
            input=template.question.format(**slots),
            domain=_domain(len(steps)),
            chain="\n".join([*steps, f"<result>{result}</result>"]),
            result=str(result),
            source_ds="generated",
        )

    def _draw(self, numbers: str) -> list[int]:
        drawn = [self.chance.choice(self.terms if n == "t" else self.factors) for n in numbers]
        return [drawn[0] * drawn[1], *drawn[1:]] if numbers[0] == "q" else drawn


def _domain(steps: int) -> str:
    return {1: "one_step", 2: "two_step"}.get(steps, "more_steps")


def read_calc_x(file: Path) -> list[Problem]:
    """Read a file of Calc-X, jsonl or parquet.

    Raises:
        BadData: with the line, or the row of parquet, and the field.
    """
    made: dict[str, Problem] = {}
    for place, row in _rows(file):
        problem = _parse(place, row)
        if problem.id in made:
            raise BadData(f"{place}: the id '{problem.id}' occurs twice. Ids must be unique.")
        made[problem.id] = problem
    if not made:
        raise BadData(f"{file} has no problem. Name a file of Calc-X, jsonl or parquet.")
    return list(made.values())


def _rows(file: Path) -> Iterator[tuple[str, Any]]:
    readers: dict[str, Callable[[Path], Iterator[tuple[str, Any]]]] = {
        ".jsonl": _jsonl_rows,
        ".parquet": _parquet_rows,
    }
    if file.suffix not in readers:
        raise BadData(
            f"{file} is neither jsonl nor parquet. Name a file of Calc-X with one of both."
        )
    try:
        yield from readers[file.suffix](file)
    except OSError as error:
        raise BadData(
            f"Cannot read {file}: {error.strerror or error}. Name a file of Calc-X."
        ) from error


def _jsonl_rows(file: Path) -> Iterator[tuple[str, Any]]:
    with file.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            place = f"{file}, line {number}"
            try:
                yield place, json.loads(line)
            except ValueError as error:
                raise BadData(f"{place}: not JSON ({error}). Write one object a line.") from error


def _parquet_rows(file: Path) -> Iterator[tuple[str, Any]]:
    import polars as pl

    try:
        rows = pl.read_parquet(file).iter_rows(named=True)
    except pl.exceptions.PolarsError as error:
        raise BadData(f"{file} is not a parquet file: {error}. Download it again.") from error
    yield from ((f"{file}, row {number}", row) for number, row in enumerate(rows, 1))


def _parse(place: str, row: Any) -> Problem:
    if not isinstance(row, dict):
        raise BadData(f"{place}: {row!r:.40} is no object. Write one object a line.")
    for field in ("id", "question", "chain", "result"):
        value = row.get(field)
        if not isinstance(value, str) or not value.strip():
            found = "is missing" if field not in row else f"is {value!r:.40}"
            raise BadData(
                f"{place}: the field '{field}' {found}. Calc-X has the texts id, question, chain "
                "and result in each row."
            )
    return Problem(
        id=row["id"],
        input=row["question"],
        domain=_domain(len(re.findall(r"<gadget\b", row["chain"]))),
        chain=row["chain"],
        result=row["result"],
        source_ds=str(row.get("source_ds") or file_stem(place)),
    )


def file_stem(place: str) -> str:
    """Return the name of the file of a place, without its suffix."""
    return Path(place.split(", ")[0]).stem


def write(file: Path, made: Iterable[Problem]) -> None:
    """Write problems as tasks."""
    rows = [json.dumps(asdict(problem), ensure_ascii=False) for problem in made]
    file.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    print(f"{file.name}: {len(rows)} problems")


def main() -> None:
    """Write both files beside this module, or the tasks of a file of Calc-X."""
    parser = argparse.ArgumentParser(description="Make the problems, or read those of Calc-X.")
    parser.add_argument("--data", type=Path, help="a file of Calc-X, jsonl or parquet")
    parser.add_argument("--to", type=Path, default=Path("calc-x.jsonl"), help="the tasks of --data")
    parser.add_argument("--seed", type=int, default=0, help="of the generated problems")
    arguments = parser.parse_args()
    if arguments.data is not None:
        try:
            write(arguments.to, read_calc_x(arguments.data))
        except BadData as error:
            sys.exit(str(error))
        return
    for name, made in zip(("train", "val"), problems(arguments.seed), strict=True):
        write(Path(__file__).with_name(f"{name}.jsonl"), made)


if __name__ == "__main__":
    main()
