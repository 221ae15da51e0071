"""A report on a run, a dataset or a policy: facts, tables and charts, before they are rendered."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ltrain_transforms.reports.references import AnyReference, Reference, WaveReference

NORMAL_95 = 1.96
"""Standard errors on each side of an interval of 95 %."""


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a number, which a page draws as a bar."""

    count: int
    total: int
    words: str

    @property
    def percent(self) -> float:
        """The length of the bar."""
        return 100 * self.count / self.total if self.total else 0.0

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True, slots=True)
class Spark:
    """Numbers in their order, which a page draws as a small line, with words on them."""

    values: tuple[float, ...]
    words: str

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True, slots=True)
class Command:
    """A command that a reader can copy."""

    text: str

    def __str__(self) -> str:
        return self.text


Cell = str | int | float | None | AnyReference | tuple[AnyReference, ...] | Share | Spark | Command
Fact = str | AnyReference | tuple[AnyReference, ...] | Command


@dataclass(frozen=True, slots=True)
class Facts:
    """Pairs of a name and a value."""

    title: str
    rows: tuple[tuple[str, Fact], ...]
    is_folded: bool = False
    """Whether a page shows it only when somebody opens it."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure that a reader sees first."""

    name: str
    value: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Tiles:
    """The figures at the top of a page."""

    title: str
    rows: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    empty: str = "none"
    """The text that replaces a table without rows."""
    is_folded: bool = False
    """Whether a page shows it only when somebody opens it."""

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Whether each column holds only numbers."""
        return tuple(
            all(row[column] is None or isinstance(row[column], int | float) for row in self.rows)
            for column in range(len(self.columns))
        )


Points = tuple[tuple[float, float], ...]
Interval = tuple[float, float, float]
"""A value on the axis x, and the lower and the upper end of the interval there."""


def intervals(means: Iterable[tuple[float, float, float | None]]) -> list[Interval]:
    """Return the intervals of a value on the axis x, a mean and its margin, where it has one."""
    return [(x, mean - margin, mean + margin) for x, mean, margin in means if margin is not None]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over a number, such as the wave of a run."""

    title: str
    x_label: str
    y_label: str
    series: tuple[tuple[str, Points], ...]
    waves: tuple[str, str] | None = None
    """The run and the mode of the waves of the points; None if they are of none."""
    bands: Mapping[str, Sequence[Interval]] = field(default_factory=dict)
    """Intervals around the points of a series, by its name."""
    marks: tuple[tuple[int, str], ...] = ()
    """Alarms: a value on the axis x, and a sentence."""
    is_integer: bool = True
    """Whether the axis x has integers only."""

    def wave(self, number: int) -> WaveReference | None:
        """Return the wave of a point."""
        return None if self.waves is None else WaveReference(*self.waves, number)


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many values are in each of several intervals of the same width."""

    title: str
    label: str
    """The name of the values."""
    bins: tuple[tuple[float, float, int], ...]
    """The ends of each interval, and the number of values in it."""


@dataclass(frozen=True, slots=True)
class Node:
    """A version in the graph of a policy."""

    label: str
    reference: Reference | None
    """None of a version that was removed from the home."""
    parent: int | None
    """The place of its parent among the nodes; None if it is not among them."""
    lane: int
    """0 for the first chain of children, and one more for each branch."""
    is_marked: bool
    """Whether the page is about it."""
    note: str
    """Words on it."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Versions and their parents, the oldest first."""

    title: str
    nodes: tuple[Node, ...]


Part = Facts | Grid | Chart | Tiles | Histogram | Graph


@dataclass(frozen=True, slots=True)
class Report:
    title: str
    subtitle: str
    parts: tuple[Part, ...]
    data: dict[str, Any] = field(repr=False)
    """The same content for `--json`."""


def format_cell(value: Cell) -> str:
    """Format a cell: integers in full, floats with three decimals or three significant digits."""
    if value is None:
        return ""
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if isinstance(value, str | bool | AnyReference | Share | Spark | Command):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return str(value)
    if abs(value) < 1e-9:  # the rounding error of a float sum that is 0
        return "0"
    small = value != 0 and abs(value) < 0.001
    return f"{value:.2e}" if small or abs(value) >= 1e9 else f"{value:,.3f}"


def join_names(values: Sequence[object]) -> str:
    """Join names with commas; `none` if there are none."""
    return ", ".join(map(str, values)) or "none"


def format_size(count: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
