"""Which candidates of a round are kept: sequential halving over minibatches of tasks."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, log2


def phases(candidates: int, keep: int) -> int:
    """Return the number of phases that halve `candidates` to `keep`: ceil(log2(n / k)), at least 1.

    With no more candidates than are kept there is nothing to select: 0.
    """
    return max(1, ceil(log2(candidates / keep))) if candidates > keep else 0


def phase_tasks(budget: int, candidates: int, all_phases: int) -> int:
    """Return the tasks that each candidate of a phase performs: t = floor(B / (n P)), at least 1.

    Sequential halving (Karnin et al. 2013, "Almost Optimal Exploration in Multi-Armed Bandits")
    with B the budget of tasks of all phases, n the candidates of the phase and P the phases.
    """
    return max(1, budget // (candidates * all_phases))


def survivors(scores: Mapping[int, Sequence[float]], keep: int) -> list[int]:
    """Return the better half of the candidates, but at least `keep`, the best first.

    |S'| = max(k, ceil(|S| / 2)), by the mean of all scores of a candidate so far; candidates of
    equal means are ordered by their number, so the older one is kept.
    """
    ranked = sorted(scores, key=lambda each: (-sum(scores[each]) / len(scores[each]), each))
    return ranked[: max(keep, ceil(len(ranked) / 2))]


def select(
    candidates: Sequence[int],
    tasks: int,
    keep: int,
    budget: int,
    perform: Callable[[list[int], range], Mapping[int, Sequence[float]]],
) -> list[int]:
    """Return the `keep` best candidates, the best first.

    Args:
        candidates: their numbers; those that are not more than are kept are only ordered.
        tasks: number of tasks; each candidate performs the same ones, and none twice.
        keep: number of candidates to keep.
        budget: tasks that all candidates perform together.
        perform: returns the scores of candidates on tasks, which it gets by their places.
    """
    scores: dict[int, list[float]] = {each: [] for each in candidates}
    count, start = max(1, phases(len(candidates), keep)), 0
    for _ in range(count):
        end = min(tasks, start + phase_tasks(budget, len(scores), count))
        if start < end:
            for each, values in perform(list(scores), range(start, end)).items():
                scores[each] += values
        start = end
        scores = {each: scores[each] for each in survivors(scores, keep)}
    return list(scores)[:keep]
