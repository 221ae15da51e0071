"""Line charts as coordinates of an inline SVG, which a template of the page draws.

The coordinates are in a box of `WIDTH` x `HEIGHT`. A page scales the box to its column; text of
size 11 stays readable on a phone.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ltrain_transforms.reports import Chart, Points, format_cell

WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 50, 12, 12, 38
"""Margins for the numbers and labels of the axes."""
MAX_DOTS = 60
"""A line with more points has no dots."""
COLOURS = 8
"""Number of colours; with three dash styles, this makes three times as many line styles."""


@dataclass(frozen=True, slots=True)
class Tick:
    position: float
    text: str


@dataclass(frozen=True, slots=True)
class Dot:
    x: float
    y: float
    label: str
    value: int
    """The value on the axis x, such as a wave."""


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    style: str
    """CSS classes of colour and dash."""
    paths: tuple[str, ...]
    """Points of polylines; a number that is not finite splits a line in two."""
    dots: tuple[Dot, ...]
    last: str
    """The last value, for the legend."""


@dataclass(frozen=True, slots=True)
class Drawing:
    title: str
    x_label: str
    y_label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]


def draw_chart(chart: Chart) -> Drawing:
    """Compute the coordinates of the lines and ticks of a chart."""
    points = [point for _, line in chart.series for point in line if math.isfinite(point[1])]
    x_ticks = ticks((x for x, _ in points), integer=True)
    y_ticks = ticks(y for _, y in points)
    x = _Scale(x_ticks, LEFT, WIDTH - RIGHT)
    y = _Scale(y_ticks, HEIGHT - BOTTOM, TOP)
    lines = (_line(number, name, line, x, y) for number, (name, line) in enumerate(chart.series))
    return Drawing(
        chart.title,
        chart.x_label,
        chart.y_label,
        tuple(Tick(x(value), f"{value:g}") for value in x_ticks),
        tuple(Tick(y(value), f"{value:g}") for value in y_ticks),
        tuple(lines),
    )


def ticks(values: Iterable[float], *, integer: bool = False, limit: int = 6) -> list[float]:
    """Return round numbers at even distances that enclose `values`: from two to `limit`."""
    numbers = list(values) or [0.0]
    low, high = min(numbers), max(numbers)
    if low == high:
        low, high = (low, high + 1) if integer else _interval_around(low)
    step, marks = (high - low) / (limit - 1), range(limit + 1)
    while len(marks) > limit:
        step = _round_up(step * 1.001, integer)
        marks = range(math.floor(low / step), math.ceil(high / step) + 1)
    return [float(f"{number * step:.12g}") for number in marks]


def _interval_around(value: float) -> tuple[float, float]:
    margin = abs(value) / 2 or 1.0
    return value - margin, value + margin


def _round_up(step: float, integer: bool) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is not below `step`."""
    if integer and step <= 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= step * (1 - 1e-9))


class _Scale:
    """Map the range of the ticks to pixels."""

    def __init__(self, marks: Sequence[float], begin: float, end: float) -> None:
        self.low, self.begin = marks[0], begin
        self.rate = (end - begin) / ((marks[-1] - marks[0]) or 1.0)

    def __call__(self, value: float) -> float:
        return round(self.begin + (value - self.low) * self.rate, 2)


def _line(number: int, name: str, points: Points, x: _Scale, y: _Scale) -> Line:
    parts: list[list[str]] = [[]]
    dots = []
    for x_value, y_value in points:
        if not math.isfinite(y_value):
            parts.append([])
            continue
        parts[-1].append(f"{x(x_value)},{y(y_value)}")
        label = f"{name}, {x_value:g}: {format_cell(y_value)}"
        dots.append(Dot(x(x_value), y(y_value), label, int(x_value)))
    return Line(
        name,
        f"c{number % COLOURS} s{number // COLOURS % 3}",
        tuple(" ".join(part) for part in parts if len(part) > 1),
        tuple(dots) if len(dots) <= MAX_DOTS else (),
        format_cell(points[-1][1]) if points else "",
    )
