"""Which tasks come in which wave: every task once an epoch, in an order the seed decides."""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def wave_tasks(wave: int, tasks: Sequence[T], size: int, seed: int) -> list[T]:
    """Give the tasks of the `wave`-th wave, counted from 0; an epoch's rest opens the next.

    No wave holds a task twice: where one ends an epoch and begins another, those of the one wait in
    the other. A wave larger than the task file holds every task once.
    """
    size = min(size, len(tasks))
    first = wave * size
    order: list[int] = []
    for epoch in range(-(-(first + size) // len(tasks))):
        shuffled = random.Random(f"{seed}/{epoch}").sample(range(len(tasks)), len(tasks))
        started = len(order) % size
        open_wave_tasks = set(order[len(order) - started :])
        head = [task for task in shuffled if task not in open_wave_tasks][: -started % size]
        order += dict.fromkeys([*head, *shuffled])
    return [tasks[index] for index in order[first : first + size]]
