"""The table and the JSON of a check."""

import platform
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ltrain_train.gpu import describe_gpus, list_gpus, torch_version

WIDTH = 160
"""Characters of a line where the output is not a terminal."""
MARKS = {True: "yes", False: "NO", None: ""}
NOTE = 300
"""Characters of a note that the table shows."""


def describe(results: Sequence[dict[str, Any]], device: str) -> dict[str, Any]:
    """Return the results with the machine on which they were measured."""
    rows = [row for result in results for row in result["rows"]]
    return {
        "name": "gpu-check",
        "value": sum(row["ok"] is False for row in rows),
        "unit": "rows that miss their bar",
        "device": device,
        "machine": describe_gpus(list_gpus()) or platform.processor() or platform.machine(),
        "torch": torch_version(),
        "python": platform.python_version(),
        "stages": list(results),
    }


def print_table(results: Sequence[dict[str, Any]], console: Console | None = None) -> None:
    """Print all rows as a table in Markdown, and the notes of rows that miss their bar."""
    console = console or Console()
    if not console.is_terminal:
        console.width = WIDTH
    table = Table("stage", "value of", "value", "unit", "bar", "met", box=box.MARKDOWN)
    for result in results:
        for row in result["rows"]:
            cells = (result["stage"], row["name"], shorten(row["value"]), row["unit"], row["bar"])
            table.add_row(*map(Text, cells), MARKS[row["ok"]])
    console.print(table)
    for result in results:
        for row in result["rows"]:
            if row["ok"] is False and row["note"]:
                text = f"{result['stage']}, {row['name']}: {row['note'][:NOTE]}"
                console.print(Text(text), soft_wrap=True)


def shorten(value: float) -> str:
    """Return a value with three significant digits, large ones with all before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
