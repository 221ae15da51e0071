"""Make messages with an order from templates: `python tasks.py` writes train.jsonl and val.jsonl.

A name, a city or a number of a message in `val` occurs in no message of `train`.
"""

import argparse
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

NAMES = (
    *("Ada", "Bela", "Cora", "Dana", "Egon", "Fay", "Gus", "Hana", "Ivo", "Jana", "Kai", "Lena"),
    *("Milo", "Nora", "Omar", "Pia", "Rafa", "Sara", "Tom", "Uma", "Viktor", "Wanda", "Yara"),
    "Zeno",
)
CITIES = (
    *("Bath", "Bern", "Cork", "Delft", "Essen", "Faro", "Genoa", "Graz", "Hull", "Kiel", "Leeds"),
    *("Lyon", "Malmo", "Nantes", "Oslo", "Parma", "Riga", "Siena", "Tours", "Turku", "Vaduz"),
    *("Vigo", "Ypres", "Zadar"),
)
COUNTS = range(2, 60)
PRODUCTS = {
    "chair": "chairs",
    "desk": "desks",
    "lamp": "lamps",
    "shelf": "shelves",
    "sofa": "sofas",
}
DELIVERIES = {
    "express": ("I need them tomorrow.", "It is urgent.", "As fast as you can, please."),
    "standard": ("There is no hurry.", "Any day is fine.", "Take your time."),
    "pickup": ("I fetch them myself.", "I come to your shop for them.", "No need to send them."),
}
MESSAGES = (
    "This is {name} from {city}. Please send me {count} {product}. {delivery}",
    "{delivery} I am {name} and I live in {city}. I want to buy {count} {product}.",
    "I would like {count} {product}. {delivery} My name is {name}, and I write from {city}.",
    "Hello, {name} here. We in {city} have room for {count} new {product}. {delivery}",
)
TRAIN, VAL = 160, 96
"""Messages of each file."""


def orders(seed: int = 0) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Make the tasks of training and of validation."""
    chance = random.Random(seed)
    pools = [_halves(values, chance) for values in (NAMES, CITIES, COUNTS)]
    train, val = zip(*pools, strict=True)
    return list(_make(chance, TRAIN, *train)), list(_make(chance, VAL, *val))


def _halves(values: Iterable[Any], chance: random.Random) -> tuple[list[Any], list[Any]]:
    shuffled = list(values)
    chance.shuffle(shuffled)
    return shuffled[: len(shuffled) // 2], shuffled[len(shuffled) // 2 :]


def _make(
    chance: random.Random, number: int, names: list[str], cities: list[str], counts: list[int]
) -> Iterator[dict[str, Any]]:
    """Yield different tasks with all kinds of messages, products and deliveries in turn."""
    made = set[str]()
    while len(made) < number:
        place = len(made)
        product, delivery = _turn(PRODUCTS, place), _turn(DELIVERIES, place)
        name, city, count = (chance.choice(each) for each in (names, cities, counts))
        message = _turn(MESSAGES, place).format(
            name=name,
            city=city,
            count=count,
            product=PRODUCTS[product],
            delivery=chance.choice(DELIVERIES[delivery]),
        )
        if message in made:
            continue
        made.add(message)
        yield {
            "id": f"{name}-{city}-{count}-{product}-{place}".lower(),
            "input": message,
            "order": {
                "customer": {"name": name, "city": city},
                "item": {"product": product, "count": count},
                "delivery": delivery,
            },
        }


def _turn(values: Iterable[Any], place: int) -> Any:
    listed = list(values)
    return listed[place % len(listed)]


def write(file: Path, made: Iterable[dict[str, Any]]) -> None:
    """Write tasks, one a line."""
    rows = [json.dumps(task) for task in made]
    file.write_text("".join(f"{row}\n" for row in rows))
    print(f"{file.name}: {len(rows)} messages")


def main() -> None:
    """Write both files beside this module."""
    parser = argparse.ArgumentParser(description="Make the messages.")
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    for name, made in zip(("train", "val"), orders(seed), strict=True):
        write(Path(__file__).with_name(f"{name}.jsonl"), made)


if __name__ == "__main__":
    main()
