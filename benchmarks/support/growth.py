"""How costs grow with a size: the exponent between successive sizes, and the table of all."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import log
from statistics import median

from benchmarks.support.process_cost import own_cpu_seconds
from setup.markdown import table

LONG = 1.0
"""CPU seconds of an operation that is measured once; a shorter one is measured `TURNS` times."""
TURNS = 3
LINEAR = 1.15
"""Largest exponent of a linear cost: two equal measurements differ by some percent."""
MIN_CPU = 0.05
"""Smallest CPU seconds whose growth is judged."""
MARK = " !"
"""Follows an exponent above linear."""
HEAD = ("operation", "size", "CPU s", "peak MB", "exponent")


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of an operation at one size."""

    cpu: float
    """CPU seconds, those of child processes included."""
    peak: int | None = None
    """Peak memory in bytes."""


Costs = Mapping[str, Mapping[int, Cost]]
"""The costs of each operation by size."""


def median_cost(run: Callable[[], object]) -> Cost:
    """Run an operation in this process, and return the median of its CPU seconds."""
    first = _cpu_of(run)
    if first > LONG:
        return Cost(first)
    return Cost(median([first, *(_cpu_of(run) for _ in range(TURNS - 1))]))


def _cpu_of(run: Callable[[], object]) -> float:
    before = own_cpu_seconds()
    run()
    return own_cpu_seconds() - before


def exponents(costs: Mapping[int, Cost]) -> Iterator[tuple[int, float | None]]:
    """Yield each size but the smallest, and the exponent of the growth from the size before.

    It is None where the CPU seconds are too few to judge.
    """
    sizes = sorted(costs)
    for before, size in pairwise(sizes):
        less, more = costs[before].cpu, costs[size].cpu
        is_judged = more >= MIN_CPU and less > 0
        yield size, log(more / less) / log(size / before) if is_judged else None


def above_linear(costs: Costs) -> list[str]:
    """Return the operations whose cost grows faster than its size somewhere."""
    return [
        name
        for name, by_size in costs.items()
        if any(each is not None and each > LINEAR for _, each in exponents(by_size))
    ]


def draw_table(costs: Costs, unit: str) -> str:
    """Return a table in Markdown with a row for each operation and size."""
    rows = [row for name, by_size in costs.items() for row in _rows(name, by_size)]
    return table([HEAD[0], unit, *HEAD[2:]], rows)


def _rows(name: str, costs: Mapping[int, Cost]) -> Iterator[list[str]]:
    growth = dict(exponents(costs))
    for size, cost in sorted(costs.items()):
        exponent = growth.get(size)
        mark = MARK if exponent is not None and exponent > LINEAR else ""
        yield [
            name,
            f"{size:,}",
            f"{cost.cpu:.3g}" if cost.cpu < 1 else f"{cost.cpu:.1f}",
            "" if cost.peak is None else f"{cost.peak / 1e6:,.0f}",
            "" if exponent is None else f"{exponent:.2f}{mark}",
        ]
