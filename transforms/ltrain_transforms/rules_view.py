"""How a report on a recipe's rules looks in the terminal."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ltrain_transforms.rules_report import Report

COLUMNS = ("rule", "looks at", "seen", "fired", "executions", "total", "mean", "r", "examples")
SHORT = 12
"""Characters of an id that `ltrain show` finds the rollout by."""

NUMBERS = ("seen", "fired", "executions", "total", "mean", "r")


def lay_out(report: Report) -> RenderableType:
    """Lay out a table of the rules, and below it what they leave out and which give nothing."""
    head = Text(f"{report.executions} executions, {report.judged} of them judged", "bold")
    table = Table(box=None, padding=(0, 1, 0, 0))
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in NUMBERS else "left", overflow="fold")
    rows = report.rules.to_dicts()
    for row in rows:
        table.add_row(*_cells(row))
    notes = [note for row in rows for note in _notes(row)]
    legend = Text("r: correlation of a rule's sum an execution with what evaluations gave", "dim")
    return Group(head, table, *notes, legend)


def _cells(row: dict[str, Any]) -> list[Text]:
    numbers = [str(row[name]) for name in ("seen", "fired", "executions")]
    numbers += [_number(row["total"], "+.3f"), _number(row["mean"], "+.3f")]
    numbers += [_number(row["correlation"], "+.2f")]
    examples = " ".join(name[:SHORT] for name in row["examples"])
    words = [row["rule"], row["looks_at"], *numbers, examples]
    return [Text(word, "" if row["fired"] else "yellow") for word in words]


def _notes(row: dict[str, Any]) -> list[Text]:
    if row["silent"]:
        return [Text(f"{row['rule']} gives nothing: {row['silent']}", "yellow")]
    if row["left_out"]:
        return [Text(f"{row['rule']} leaves out: {row['left_out']}")]
    return []


def _number(value: float | None, spelled: str) -> str:
    return "" if value is None else format(value, spelled)
