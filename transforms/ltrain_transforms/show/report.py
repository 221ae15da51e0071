"""What is told of a run, a dataset or a policy: facts, tables and charts, whoever lays them out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and what they are."""

    title: str
    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Grid:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    empty: str = "none"
    """What is said where there is no row."""

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Say of each column whether it holds numbers only."""
        return tuple(
            all(row[place] is None or isinstance(row[place], int | float) for row in self.rows)
            for place in range(len(self.columns))
        )


Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over the waves of a run, or another whole number."""

    title: str
    across: str
    up: str
    series: tuple[tuple[str, Points], ...]


@dataclass(frozen=True, slots=True)
class Report:
    title: str
    subtitle: str
    parts: tuple[Facts | Grid | Chart, ...]
    data: dict[str, Any] = field(repr=False)
    """The same for programs."""


def told(value: Cell) -> str:
    """Write a cell: whole numbers in full, others to three decimals or three digits."""
    if value is None:
        return ""
    if isinstance(value, str | bool):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return str(value)
    if abs(value) < 1e-9:  # what a sum of floats leaves of nothing
        return "0"
    small = value != 0 and abs(value) < 0.001
    return f"{value:.2e}" if small or abs(value) >= 1e9 else f"{value:,.3f}"


def named(values: Sequence[object]) -> str:
    """Name a few things in a row, or say that there is none."""
    return ", ".join(map(str, values)) or "none"


def size(count: float) -> str:
    """Write a number of bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
