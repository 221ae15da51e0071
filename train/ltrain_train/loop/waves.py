"""The tasks of each wave: every task once an epoch, in an order that the seed determines."""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def wave_tasks(wave: int, tasks: Sequence[T], size: int, seed: int) -> list[T]:
    """Return the tasks of a wave, counted from 0; the last tasks of an epoch start the next wave.

    No wave has a task twice. When a wave spans two epochs, the tasks it has from the first come
    later in the second. A wave larger than the task file has every task once.
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
