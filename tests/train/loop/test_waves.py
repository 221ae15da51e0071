from collections import Counter

import pytest

from ltrain_train.loop.waves import wave_tasks

TASKS = [f"t{number}" for number in range(10)]


def test_every_task_comes_once_in_an_epoch() -> None:
    order = [task for wave in range(5) for task in wave_tasks(wave, TASKS, 4, seed=0)]
    assert Counter(order) == {task: 2 for task in TASKS}


def test_the_tasks_of_a_wave_are_reproducible() -> None:
    assert wave_tasks(3, TASKS, 4, seed=1) == wave_tasks(3, TASKS, 4, seed=1)
    assert wave_tasks(0, TASKS, 10, seed=1) != wave_tasks(0, TASKS, 10, seed=2)


def test_a_wave_larger_than_the_file_has_every_task_once() -> None:
    assert Counter(wave_tasks(0, TASKS, 99, seed=0)) == {task: 1 for task in TASKS}


@pytest.mark.parametrize(("size", "tasks"), [(12, 16), (4, 10), (7, 8), (9, 10)])
def test_a_wave_across_epochs_has_no_task_twice(size: int, tasks: int) -> None:
    names = [f"t{number}" for number in range(tasks)]
    for seed in range(20):
        waves = [wave_tasks(wave, names, size, seed) for wave in range(tasks)]
        assert all(len(set(wave)) == size for wave in waves)
        order = [task for wave in waves for task in wave]
        epochs = [order[first : first + tasks] for first in range(0, len(order), tasks)]
        assert all(set(epoch) == set(names) for epoch in epochs)
