"""The timeline of a run: its phases, which may overlap, and the time without an engine."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

from ltrain_instrument.clock import steady_time
from ltrain_train.runs.journal import Phase

START, BETWEEN, END = "start", "between", "end"
"""The time before the first phase, between two phases, and after the last one."""


class Phases:
    """A stopwatch of phases, which one thread measures."""

    def __init__(self) -> None:
        self._ended: list[Phase] = []

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Record the time of the block as a phase."""
        began = steady_time()
        try:
            yield
        finally:
            self._ended.append(Phase(name, round(began, 2), round(steady_time(), 2)))

    def pop(self) -> tuple[Phase, ...]:
        """Return the phases so far, and forget them."""
        phases, self._ended = tuple(self._ended), []
        return phases


def split_time(
    phases: Iterable[Phase], precedence: Sequence[str], began: float, ended: float
) -> dict[str, float]:
    """Return the seconds from `began` to `ended` by phase; they add up to the whole time.

    Args:
        phases: what it did, in any order.
        precedence: names of phases; of those that run at a moment, it counts for the first one.
            Others do not count.
        began, ended: Unix times.

    Returns:
        seconds by the name of a phase, `START`, `BETWEEN` or `END`.
    """
    counted = [phase for phase in phases if phase.name in precedence]
    first = min((phase.began for phase in counted), default=ended)
    last = max((phase.ended for phase in counted), default=ended)
    times = {time for phase in counted for time in (phase.began, phase.ended)}
    moments = sorted({began, ended} | {time for time in times if began < time < ended})
    seconds: dict[str, float] = defaultdict(float)
    for start, stop in pairwise(moments):
        running = {each.name for each in counted if each.began <= start and stop <= each.ended}
        outside = START if stop <= first else END if start >= last else BETWEEN
        name = next((name for name in precedence if name in running), outside)
        seconds[name] += stop - start
    return dict(seconds)
