"""Group-wise dispatch: the rollouts of a task start together."""

from itertools import groupby

from hypothesis import given
from hypothesis.strategies import booleans, integers, lists

from ltrain_train.schedule import GroupQueue

Rollout = tuple[int, int]
"""A task and a sample."""


def task(rollout: Rollout) -> int:
    return rollout[0]


@given(lists(integers(1, 5), min_size=1, max_size=8))
def test_all_rollouts_of_a_task_start_before_those_of_the_next(sizes: list[int]) -> None:
    rollouts = [(task, sample) for task, size in enumerate(sizes) for sample in range(size)]
    queue = GroupQueue(sorted(rollouts, key=lambda rollout: rollout[1]), group=task)
    started = [queue.pop() for _ in rollouts]
    assert sorted(filter(None, started)) == rollouts
    groups = [number for number, _ in groupby(filter(None, started), key=task)]
    assert len(groups) == len(set(groups))
    assert queue.pop() is None


@given(lists(booleans(), min_size=12, max_size=40))
def test_a_rollout_that_is_tried_again_starts_before_the_tasks_that_wait(
    outages: list[bool],
) -> None:
    rollouts = [(task, sample) for task in range(4) for sample in range(3)]
    queue = GroupQueue(rollouts, group=task)
    started: list[Rollout] = []
    retries = 0
    while (rollout := queue.pop()) is not None:
        if len(started) < len(outages) and outages[len(started)]:
            queue.push(rollout)
            retries += 1
        started.append(rollout)
    assert [number for number, _ in groupby(started, key=task)] == [0, 1, 2, 3]
    assert set(started) == set(rollouts) and len(started) == len(rollouts) + retries


def test_a_rollout_that_needs_a_process_of_its_own_waits_apart() -> None:
    queue = GroupQueue(
        [(0, 0), (0, 1), (1, 0)], group=task, isolated=lambda rollout: rollout == (0, 0)
    )
    assert (queue.has(isolated=True), queue.has(), len(queue)) == (True, True, 3)
    assert [queue.pop(), queue.pop(), queue.pop()] == [(0, 1), (1, 0), None]
    assert (queue.pop(isolated=True), len(queue)) == ((0, 0), 0)
