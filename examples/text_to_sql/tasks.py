"""Make the questions from templates: `python tasks.py` writes train.jsonl and val.jsonl.

A slot value (a country, a year, a stadium, ...) of a question in `val` occurs in no question of
`train`, with any template.
"""

import json
import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from database import CITIES, COUNTRIES, STADIUMS

TRAIN_VALUES = 6
VAL_VALUES = 8

SLOTS: dict[str, tuple[str | int, ...]] = {
    "country": COUNTRIES,
    "age": (20, 22, 25, 28, 31, 34, 37, 41, 44, 47, 51, 55, 58, 62),
    "stadium": STADIUMS,
    "capacity": tuple(range(10_000, 80_000, 5_000)),
    "city": tuple(city for city in CITIES if city != "Lima"),  # Lima is in the agent's prompt
    "year": tuple(range(2004, 2018)),
}
"""The values of each slot: at least TRAIN_VALUES + VAL_VALUES."""


@dataclass(frozen=True, slots=True)
class Template:
    kind: str
    slot: str
    question: str
    gold: str
    """The query whose rows are the correct answer."""


TEMPLATES = (
    Template(
        "count_country",
        "country",
        "How many singers are from {x}?",
        "SELECT count(*) FROM singer WHERE country = '{x}'",
    ),
    Template(
        "names_country",
        "country",
        "What are the names of the singers from {x}?",
        "SELECT name FROM singer WHERE country = '{x}'",
    ),
    Template(
        "avg_age_country",
        "country",
        "What is the average age of singers from {x}?",
        "SELECT avg(age) FROM singer WHERE country = '{x}'",
    ),
    Template(
        "count_older",
        "age",
        "How many singers are older than {x}?",
        "SELECT count(*) FROM singer WHERE age > {x}",
    ),
    Template(
        "capacity_of",
        "stadium",
        "What is the capacity of the stadium named {x}?",
        "SELECT capacity FROM stadium WHERE name = '{x}'",
    ),
    Template(
        "city_of",
        "stadium",
        "In which city is the stadium named {x}?",
        "SELECT city FROM stadium WHERE name = '{x}'",
    ),
    Template(
        "big_stadiums",
        "capacity",
        "Which stadiums have a capacity above {x}? Give their names.",
        "SELECT name FROM stadium WHERE capacity > {x}",
    ),
    Template(
        "max_capacity_city",
        "city",
        "What is the largest capacity of a stadium in {x}?",
        "SELECT max(capacity) FROM stadium WHERE city = '{x}'",
    ),
    Template(
        "count_year",
        "year",
        "How many concerts were held in {x}?",
        "SELECT count(*) FROM concert WHERE year = {x}",
    ),
    Template(
        "titles_year",
        "year",
        "What are the titles of the concerts held in {x}?",
        "SELECT title FROM concert WHERE year = {x}",
    ),
    Template(
        "titles_stadium",
        "stadium",
        "What are the titles of the concerts at the {x} stadium?",
        "SELECT title FROM concert WHERE stadium = '{x}'",
    ),
    Template(
        "count_after",
        "year",
        "How many concerts were held after {x}?",
        "SELECT count(*) FROM concert WHERE year > {x}",
    ),
)


@dataclass(frozen=True, slots=True)
class Question:
    id: str
    input: str
    """The question to the agent."""
    kind: str
    gold: str


def split(slot: str, seed: int = 0) -> tuple[list[str | int], list[str | int]]:
    """Return the values of `slot` for training and for validation."""
    values = list(SLOTS[slot])
    random.Random(f"{seed}/{slot}").shuffle(values)
    return values[:TRAIN_VALUES], values[TRAIN_VALUES : TRAIN_VALUES + VAL_VALUES]


def questions(seed: int = 0) -> tuple[list[Question], list[Question]]:
    """Make the questions of training and of validation."""
    train: list[Question] = []
    val: list[Question] = []
    for template in TEMPLATES:
        training, held_out = split(template.slot, seed)
        train += _fill(template, training)
        val += _fill(template, held_out)
    return train, val


def _fill(template: Template, values: Iterable[str | int]) -> list[Question]:
    return [
        Question(
            id=f"{template.kind}-{value}",
            input=template.question.format(x=value),
            kind=template.kind,
            gold=template.gold.format(x=value),
        )
        for value in values
    ]


def main() -> None:
    """Write both files beside this module."""
    for name, rows in zip(("train", "val"), questions(), strict=True):
        path = Path(__file__).with_name(f"{name}.jsonl")
        path.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
        print(f"{path.name}: {len(rows)} questions")


if __name__ == "__main__":
    main()
