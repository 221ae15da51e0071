from collections import Counter

from ltrain_train.loop.waves import tasks_of

TASKS = [f"t{number}" for number in range(10)]


def test_every_task_comes_once_an_epoch() -> None:
    seen = [task for wave in range(5) for task in tasks_of(wave, TASKS, 4, seed=0)]
    assert Counter(seen) == {task: 2 for task in TASKS}


def test_a_wave_is_the_same_whenever_it_is_asked_for() -> None:
    assert tasks_of(3, TASKS, 4, seed=1) == tasks_of(3, TASKS, 4, seed=1)
    assert tasks_of(0, TASKS, 10, seed=1) != tasks_of(0, TASKS, 10, seed=2)


def test_a_wave_larger_than_the_file_holds_every_task_once() -> None:
    assert Counter(tasks_of(0, TASKS, 99, seed=0)) == {task: 1 for task in TASKS}
