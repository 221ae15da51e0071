"""Sequential halving: phases, tasks and survivors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ltrain_train.prompts.optimizer import phase_tasks, phases, select, survivors


@pytest.mark.parametrize(
    ("candidates", "keep", "expected"),
    [(1, 1, 0), (2, 2, 0), (2, 1, 1), (3, 2, 1), (8, 1, 3), (9, 1, 4), (10, 2, 3), (8, 2, 2)],
)
def test_the_phases_halve_the_candidates_to_the_beam(
    candidates: int, keep: int, expected: int
) -> None:
    assert phases(candidates, keep) == expected
    left = candidates
    for _ in range(expected):
        left = len(survivors({key: [0.0] for key in range(left)}, keep))
    assert left == keep or expected == 0


def test_a_phase_has_its_share_of_the_budget() -> None:
    assert [phase_tasks(64, n, 3) for n in (10, 5, 3)] == [2, 4, 7]
    assert phase_tasks(3, 10, 3) == 1


def test_the_better_half_survives_and_the_older_one_of_equals() -> None:
    scores = {4: [0.0, 1.0], 2: [0.5], 7: [1.0], 9: [0.0]}
    assert survivors(scores, 1) == [7, 2]
    assert survivors(scores, 3) == [7, 2, 4]
    assert survivors({3: [0.0]}, 2) == [3]


@given(st.integers(1, 200), st.integers(1, 8), st.integers(1, 1000))
def test_a_phase_costs_its_share_of_the_budget_or_a_task_for_each_candidate(
    candidates: int, keep: int, budget: int
) -> None:
    left, count = candidates, phases(candidates, keep)
    for _ in range(count):
        assert left * phase_tasks(budget, left, count) <= max(budget / count, left)
        left = max(keep, -(-left // 2))
    assert left == min(candidates, keep)


def test_all_perform_the_same_tasks_and_the_better_half_goes_on() -> None:
    performed: list[tuple[list[int], range]] = []

    def perform(candidates: list[int], places: range) -> dict[int, list[float]]:
        performed.append((candidates, places))
        return {each: [each / 10] * len(places) for each in candidates}

    assert select([0, 1, 2, 3, 4, 5, 6, 7], 20, 2, 32, perform) == [7, 6]
    assert performed == [(list(range(8)), range(0, 2)), ([7, 6, 5, 4], range(2, 6))]


def test_a_selection_ends_with_the_tasks() -> None:
    places: list[range] = []

    def perform(candidates: list[int], batch: range) -> dict[int, list[float]]:
        places.append(batch)
        return {each: [float(each == 3)] * len(batch) for each in candidates}

    assert select([1, 2, 3, 4, 5], 3, 1, 1000, perform) == [3]
    assert select([1, 3], 3, 2, 1000, perform) == [3, 1]
    assert places == [range(3), range(3)]
