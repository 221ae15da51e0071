"""Line charts as coordinates of an inline SVG, which a template of the page draws.

The coordinates are in a box of `WIDTH` x `HEIGHT`. A page scales the box to its column; text of
size 11 stays readable on a phone.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from ltrain_transforms.reports import (
    Chart,
    Graph,
    Histogram,
    Interval,
    Points,
    format_cell,
)

WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 12, 38
"""Margins for the numbers and labels of the axes."""
MAX_DOTS = 60
"""A line with more points has no dots."""
COLOURS = 8
"""Number of colours; with three dash styles, this makes three times as many line styles."""


MAX_VALUES = 5_000
"""A chart with more points has no cursor that shows its values."""


@dataclass(frozen=True, slots=True)
class ChartOptions:
    """The reader's choice of how lines are drawn."""

    is_log: bool = False
    """Whether the axis y is logarithmic; not where a value is not positive."""
    smoothing: float = 0.0
    """The weight of the values before in a moving average, in [0, 1)."""


LINEAR = ChartOptions()
SMOOTHINGS = (0.0, 0.6, 0.9)
"""The weights that a page offers."""


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
    bands: tuple[str, ...] = ()
    """Points of the polygons of its intervals."""


@dataclass(frozen=True, slots=True)
class Drawing:
    title: str
    x_label: str
    y_label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]
    marks: tuple[Tick, ...] = ()
    """Alarms on the axis x: place and sentence."""
    axis: tuple[float, float, float, float] = (0, 0, 0, 0)
    """The ends of the axis x as values, and as places."""
    values: Sequence[Points] = ()
    """The values of each line, for the cursor; empty if there are too many."""


def draw_chart(chart: Chart, options: ChartOptions = LINEAR) -> Drawing:
    """Compute the coordinates of the lines and ticks of a chart."""
    points = [point for _, line in chart.series for point in line if math.isfinite(point[1])]
    ends = [end for band in chart.bands.values() for _, *limits in band for end in limits]
    heights = [*(y for _, y in points), *ends]
    x_ticks = ticks((x for x, _ in points), integer=chart.is_integer)
    is_log = options.is_log and bool(heights) and min(heights) > 0
    y_ticks = log_ticks(heights) if is_log else ticks(heights)
    x = _Scale(x_ticks, LEFT, WIDTH - RIGHT)
    y = _Scale(y_ticks, HEIGHT - BOTTOM, TOP, math.log10 if is_log else float)
    lines = [
        _line(number, name, line, x, y, chart.bands.get(name, ()), options.smoothing)
        for number, (name, line) in enumerate(chart.series)
    ]
    return Drawing(
        chart.title,
        chart.x_label,
        chart.y_label,
        tuple(Tick(x(value), f"{value:g}") for value in x_ticks),
        tuple(Tick(y(value), f"{value:g}") for value in y_ticks),
        tuple(lines),
        tuple(Tick(x(wave), text) for wave, text in chart.marks if x.has(wave)),
        (x_ticks[0], x_ticks[-1], LEFT, WIDTH - RIGHT),
        _values(chart) if len(points) <= MAX_VALUES else (),
    )


def _values(chart: Chart) -> list[Points]:
    """Return the points of each line that are finite: JSON has no other numbers."""
    return [tuple(point for point in line if math.isfinite(point[1])) for _, line in chart.series]


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    label: str


@dataclass(frozen=True, slots=True)
class Bars:
    """A histogram."""

    bars: tuple[Bar, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


def draw_histogram(histogram: Histogram) -> Bars:
    """Compute the coordinates of the bars and ticks of a histogram."""
    low, high = histogram.bins[0][0], histogram.bins[-1][1]
    x_ticks, y_ticks = ticks((low, high)), ticks((0, *(count for *_, count in histogram.bins)))
    x = _Scale(x_ticks, LEFT, WIDTH - RIGHT)
    y = _Scale(y_ticks, HEIGHT - BOTTOM, TOP)
    bars = []
    for begin, end, count in histogram.bins:
        width, height = max(x(end) - x(begin) - 1, 1), y(0) - y(count)
        label = f"{format_cell(begin)} to {format_cell(end)}: {count:,}"
        bars.append(Bar(x(begin), y(count), round(width, 2), round(height, 2), label))
    return Bars(
        tuple(bars),
        tuple(Tick(x(value), f"{value:g}") for value in x_ticks),
        tuple(Tick(y(value), f"{value:g}") for value in y_ticks),
    )


STEP, LANE = 44, 30
"""Distance of two versions of a graph, and of two lanes."""


@dataclass(frozen=True, slots=True)
class Circle:
    x: int
    y: int
    edge: str
    """The line to its parent, as an SVG path; '' without one."""


@dataclass(frozen=True, slots=True)
class GraphDrawing:
    width: int
    height: int
    circles: tuple[Circle, ...]


def draw_graph(graph: Graph) -> GraphDrawing:
    """Compute the places of the versions of a graph, from the left to the right."""
    places = [
        (STEP // 2 + number * STEP, LANE // 2 + node.lane * LANE)
        for number, node in enumerate(graph.nodes)
    ]
    circles = tuple(
        Circle(x, y, "" if node.parent is None else _edge(places[node.parent], (x, y)))
        for node, (x, y) in zip(graph.nodes, places, strict=True)
    )
    lanes = max((node.lane for node in graph.nodes), default=0) + 1
    return GraphDrawing(STEP * max(len(places), 1), LANE * lanes, circles)


def _edge(parent: tuple[int, int], child: tuple[int, int]) -> str:
    (x, y), (end, height) = parent, child
    return f"M{x} {y}C{x + STEP // 2} {y} {end - STEP // 2} {height} {end} {height}"


def spark_points(values: Sequence[float]) -> str:
    """Return the points of a small line in a box of 64 x 18."""
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    step, height = 60 / max(len(finite) - 1, 1), 14 / ((high - low) or 1.0)
    places = (
        (2 + number * step, 16 - (value - low) * height) for number, value in enumerate(finite)
    )
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def log_ticks(values: Iterable[float]) -> list[float]:
    """Return powers of ten that enclose positive values; with 2 and 5 between them if few do."""
    numbers = list(values)
    low, high = math.floor(math.log10(min(numbers))), math.ceil(math.log10(max(numbers)))
    powers = range(low, max(high, low + 1) + 1)
    if len(powers) > 3:
        step = math.ceil(len(powers) / 6)
        return [10.0**power for power in range(low, powers[-1] + step, step)]
    marks = [float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)]
    first = max((mark for mark in marks if mark <= min(numbers)), default=marks[0])
    last = min((mark for mark in marks if mark >= max(numbers) and mark > first), default=marks[-1])
    return [mark for mark in marks if first <= mark <= last]


def smooth(points: Points, weight: float) -> Points:
    """Return the moving average of points, in which a value counts `weight` times the one after it.

    The average starts without a bias to 0, as that of Adam: Kingma and Ba 2015, section 3.
    """
    total, mass, smoothed = 0.0, 0.0, []
    for x, y in points:
        if math.isfinite(y):
            total, mass = weight * total + (1 - weight) * y, weight * mass + 1 - weight
            y = total / mass
        smoothed.append((x, y))
    return tuple(smoothed)


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

    def __init__(
        self,
        marks: Sequence[float],
        begin: float,
        end: float,
        transform: Callable[[float], float] = float,
    ) -> None:
        self.marks, self.begin, self.transform = marks, begin, transform
        self.low = transform(marks[0])
        self.rate = (end - begin) / ((transform(marks[-1]) - self.low) or 1.0)

    def has(self, value: float) -> bool:
        return self.marks[0] <= value <= self.marks[-1]

    def __call__(self, value: float) -> float:
        return round(self.begin + (self.transform(value) - self.low) * self.rate, 2)


def _line(
    number: int,
    name: str,
    points: Points,
    x: _Scale,
    y: _Scale,
    band: Sequence[Interval],
    smoothing: float,
) -> Line:
    dots = []
    for x_value, y_value in points:
        if math.isfinite(y_value):
            label = f"{name}, {x_value:g}: {format_cell(y_value)}"
            dots.append(Dot(x(x_value), y(y_value), label, int(x_value)))
    return Line(
        name,
        f"c{number % COLOURS} s{number // COLOURS % 3}",
        tuple(_paths(smooth(points, smoothing), x, y)),
        tuple(dots) if len(dots) <= MAX_DOTS else (),
        format_cell(points[-1][1]) if points else "",
        (_polygon(band, x, y),) if len(band) > 1 else (),
    )


def _paths(points: Points, x: _Scale, y: _Scale) -> Iterator[str]:
    """Yield the polylines of the points; one that is not finite splits a line in two."""
    for is_finite, run in groupby(points, key=lambda point: math.isfinite(point[1])):
        part = [f"{x(x_value)},{y(y_value)}" for x_value, y_value in run] if is_finite else []
        if len(part) > 1:
            yield " ".join(part)


def _polygon(band: Sequence[Interval], x: _Scale, y: _Scale) -> str:
    above = [f"{x(at)},{y(high)}" for at, _, high in band]
    below = [f"{x(at)},{y(low)}" for at, low, _ in reversed(band)]
    return " ".join((*above, *below))
