"""Which tasks come in which wave: every task once an epoch, in an order the seed decides."""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def tasks_of(wave: int, tasks: Sequence[T], size: int, seed: int) -> list[T]:
    """Give the tasks of the `wave`-th wave, counted from 0; an epoch's rest opens the next.

    A wave larger than the task file holds every task once.
    """
    size = min(size, len(tasks))
    first, chosen = wave * size, []
    for place in range(first, first + size):
        epoch, rank = divmod(place, len(tasks))
        order = random.Random(f"{seed}/{epoch}").sample(range(len(tasks)), len(tasks))
        chosen.append(tasks[order[rank]])
    return chosen
