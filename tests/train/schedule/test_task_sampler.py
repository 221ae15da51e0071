"""The choice of a wave's tasks: epochs, domains, difficulty, and the same choice after a kill."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis.strategies import dictionaries, integers, lists, sampled_from

from ltrain_train.errors import BadDomains
from ltrain_train.schedule import TaskSampler
from ltrain_train.schedule.task_sampler import DifficultyOrder

MATH, CODE = "math", "code"


@dataclass(frozen=True)
class Task:
    id: str
    domain: str = ""


def tasks(count: int, domain: str = "") -> list[Task]:
    return [Task(f"{domain}{number}", domain) for number in range(count)]


def waves(sampler: TaskSampler[Task], sizes: Sequence[int]) -> list[list[Task]]:
    drawn = []
    for size in sizes:
        sampler.begin_wave()
        drawn.append(sampler.draw(size))
    return drawn


def earlier_order(wave: int, tasks: Sequence[Task], size: int, seed: int) -> list[Task]:
    """Return the wave's tasks by the definition of an epoch's order: literally, in one pass."""
    first = wave * size
    order: list[int] = []
    for epoch in range(-(-(first + size) // len(tasks))):
        shuffled = random.Random(f"{seed}/{epoch}").sample(range(len(tasks)), len(tasks))
        started = len(order) % size
        open_wave = set(order[len(order) - started :])
        head = [task for task in shuffled if task not in open_wave][: -started % size]
        order += dict.fromkeys([*head, *shuffled])
    return [tasks[index] for index in order[first : first + size]]


@given(integers(1, 12), integers(1, 12), integers(0, 3))
def test_epochs_have_every_task_once_and_waves_none_twice(count: int, size: int, seed: int) -> None:
    size = min(size, count)
    drawn = waves(TaskSampler(tasks(count), seed=seed), [size] * count)
    assert drawn == [earlier_order(wave, tasks(count), size, seed) for wave in range(count)]
    assert all(len(set(wave)) == size for wave in drawn)
    assert Counter(task for wave in drawn for task in wave) == dict.fromkeys(tasks(count), size)


def test_a_wave_larger_than_the_file_has_every_task_once() -> None:
    [wave] = waves(TaskSampler(tasks(10), seed=0), [99])
    assert Counter(wave) == dict.fromkeys(tasks(10), 1)


@given(
    dictionaries(sampled_from("abcd"), integers(1, 9), min_size=1),
    lists(integers(1, 9), min_size=1, max_size=12),
)
def test_no_domain_is_more_than_one_task_ahead_of_its_share(
    domains: dict[str, int], sizes: list[int]
) -> None:
    pool = [task for name in domains for task in tasks(9, name)]
    sampler = TaskSampler(pool, seed=0, domains=domains)
    counts: Counter[str] = Counter()
    for wave in waves(sampler, sizes):
        for task in wave:
            counts[task.domain] += 1
            for name, weight in domains.items():
                share = weight / sum(domains.values()) * counts.total()
                assert counts[name] - share < 1 + 1e-9
    assert counts.total() == sum(sizes)


def test_a_domain_of_weight_0_is_left_out_and_one_that_lacks_tasks_is_filled_up() -> None:
    pool = [*tasks(9, MATH), *tasks(1, CODE), *tasks(5, "chat")]
    sampler = TaskSampler(pool, seed=0, domains={MATH: 1, CODE: 1, "chat": 0})
    [wave] = waves(sampler, [6])
    assert Counter(task.domain for task in wave) == {MATH: 5, CODE: 1}


def test_domains_of_tasks_and_weights_must_be_the_same() -> None:
    pool = [*tasks(1, MATH), *tasks(1, CODE)]
    with pytest.raises(BadDomains, match="domain 'code' has no weight"):
        TaskSampler(pool, seed=0, domains={MATH: 1})
    with pytest.raises(BadDomains, match="weight to 'cod', and no task has this domain"):
        TaskSampler(pool, seed=0, domains={MATH: 1, CODE: 1, "cod": 1})


@given(lists(integers(1, 5), min_size=2, max_size=8), integers(0, 99))
def test_a_sampler_that_repeats_the_waves_of_a_journal_draws_the_same(
    sizes: list[int], seed: int
) -> None:
    pool = [*tasks(7, MATH), *tasks(6, CODE)]

    def sampler() -> TaskSampler[Task]:
        return TaskSampler(pool, seed=seed, domains={MATH: 2, CODE: 1}, target_score=0.5)

    journal: list[tuple[int, dict[str, float]]] = []
    whole, choices = sampler(), []
    for size in sizes:
        whole.begin_wave()
        drawn = whole.draw(1) + whole.draw(size)  # a wave may draw more tasks later
        scores = {task.id: random.Random(task.id).random() for task in drawn}
        whole.add_scores(scores)
        journal.append((len(drawn), scores))
        choices.append(drawn)
    for killed in range(len(sizes)):
        again = sampler()
        for size, scores in journal[:killed]:
            again.begin_wave()
            again.draw(size)
            again.add_scores(scores)
        again.begin_wave()
        assert again.draw(journal[killed][0]) == choices[killed]


def test_tasks_near_the_target_score_come_more_often() -> None:
    sampler = TaskSampler(tasks(9), seed=0, target_score=0.5)
    sampler.add_scores({str(number): number / 8 for number in range(9)})
    counts = Counter(task.id for wave in waves(sampler, [2] * 1000) for task in wave)
    assert counts["4"] > 3 * max(counts["0"], counts["8"])
    assert min(counts.values()) > 0 and counts.keys() == {str(number) for number in range(9)}


class CountedTasks(set[str]):
    """Excluded tasks, and how often one was looked for among them."""

    looked = 0

    def __contains__(self, task: object) -> bool:
        self.looked += 1
        return super().__contains__(task)


def test_a_wave_by_difficulty_looks_at_each_task_a_few_times_however_many_there_are() -> None:
    ids = [str(number) for number in range(2_000)]
    order, excluded = DifficultyOrder(ids, "0", 0.5), CountedTasks()
    order.begin_wave(0, {})
    drawn = []
    while (task := order.next(excluded)) is not None:
        drawn.append(task)
        excluded.add(task)
    assert sorted(drawn) == sorted(ids)
    assert excluded.looked <= 3 * len(ids)
