"""Which tasks come in which wave: every task once an epoch, in an order the seed decides."""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def tasks_of(wave: int, tasks: Sequence[T], size: int, seed: int) -> list[T]:
    """Give the tasks of the `wave`-th wave, counted from 0; an epoch's rest opens the next.

    No wave holds a task twice: where one ends an epoch and begins another, those of the one wait in
    the other. A wave larger than the task file holds every task once.
    """
    size = min(size, len(tasks))
    first = wave * size
    order: list[int] = []
    for epoch in range(-(-(first + size) // len(tasks))):
        drawn = random.Random(f"{seed}/{epoch}").sample(range(len(tasks)), len(tasks))
        begun = len(order) % size
        held = set(order[len(order) - begun :])
        head = [task for task in drawn if task not in held][: -begun % size]
        order += dict.fromkeys([*head, *drawn])
    return [tasks[place] for place in order[first : first + size]]
