"""Line charts as the numbers of an inline SVG; the template draws them, the page's style colours.

Coordinates are those of a box `WIDTH` x `HEIGHT`, which a page scales to its column: text of 11
stays readable on a phone.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ltrain_transforms.show.report import Chart, Points, told

WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 50, 12, 12, 38
"""Room for the axes' numbers and labels."""
DOTS = 60
"""With more points than this a line has no dots."""
COLOURS = 8
"""Lines that differ by colour; with the dashes there are three times as many."""


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Dot:
    x: float
    y: float
    said: str


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    style: str
    """Classes of colour and dash."""
    paths: tuple[str, ...]
    """Points of polylines; a number that is not finite parts a line in two."""
    dots: tuple[Dot, ...]
    last: str
    """The last number, for the legend."""


@dataclass(frozen=True, slots=True)
class Drawing:
    title: str
    across: str
    up: str
    xs: tuple[Tick, ...]
    ys: tuple[Tick, ...]
    lines: tuple[Line, ...]


def drawing(chart: Chart) -> Drawing:
    """Place a chart's lines and ticks in the box."""
    points = [point for _, line in chart.series for point in line if math.isfinite(point[1])]
    x_ticks = ticks((x for x, _ in points), whole=True)
    y_ticks = ticks(y for _, y in points)
    x = _Scale(x_ticks, LEFT, WIDTH - RIGHT)
    y = _Scale(y_ticks, HEIGHT - BOTTOM, TOP)
    lines = (_line(number, name, line, x, y) for number, (name, line) in enumerate(chart.series))
    return Drawing(
        chart.title,
        chart.across,
        chart.up,
        tuple(Tick(x(value), f"{value:g}") for value in x_ticks),
        tuple(Tick(y(value), f"{value:g}") for value in y_ticks),
        tuple(lines),
    )


def ticks(values: Iterable[float], *, whole: bool = False, most: int = 6) -> list[float]:
    """Give round numbers at even distances that enclose `values`: two to `most` of them."""
    found = list(values) or [0.0]
    low, high = min(found), max(found)
    if low == high:
        low, high = (low, high + 1) if whole else _around(low)
    step, marks = (high - low) / (most - 1), range(most + 1)
    while len(marks) > most:
        step = _round(step * 1.001, whole)
        marks = range(math.floor(low / step), math.ceil(high / step) + 1)
    return [float(f"{number * step:.12g}") for number in marks]


def _around(value: float) -> tuple[float, float]:
    room = abs(value) / 2 or 1.0
    return value - room, value + room


def _round(step: float, whole: bool) -> float:
    """Give the least of 1, 2 and 5 times a power of ten that is not below `step`."""
    if whole and step <= 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * many for many in (1, 2, 5, 10) if power * many >= step * (1 - 1e-9))


class _Scale:
    """Map the range of ticks to pixels."""

    def __init__(self, marks: Sequence[float], begin: float, end: float) -> None:
        self.low, self.begin = marks[0], begin
        self.rate = (end - begin) / ((marks[-1] - marks[0]) or 1.0)

    def __call__(self, value: float) -> float:
        return round(self.begin + (value - self.low) * self.rate, 2)


def _line(number: int, name: str, points: Points, x: _Scale, y: _Scale) -> Line:
    parts: list[list[str]] = [[]]
    dots = []
    for across, up in points:
        if not math.isfinite(up):
            parts.append([])
            continue
        parts[-1].append(f"{x(across)},{y(up)}")
        dots.append(Dot(x(across), y(up), f"{name}, {across:g}: {told(up)}"))
    return Line(
        name,
        f"c{number % COLOURS} s{number // COLOURS % 3}",
        tuple(" ".join(part) for part in parts if len(part) > 1),
        tuple(dots) if len(dots) <= DOTS else (),
        told(points[-1][1]) if points else "",
    )
