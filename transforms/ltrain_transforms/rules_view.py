"""The report on the rules of a recipe, rendered for the terminal."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ltrain_transforms.rules_report import RulesReport

COLUMNS = ("rule", "looks at", "seen", "fired", "executions", "total", "mean", "r", "examples")
SHORT = 12
"""Characters of a rollout id that are shown; `ltrain show` accepts such a prefix."""

NUMBERS = ("seen", "fired", "executions", "total", "mean", "r")


def render_report(report: RulesReport) -> RenderableType:
    """Render a table of the rules, then what they leave out and which rules give nothing."""
    head = Text(f"{report.executions} executions, {report.judged} of them judged", "bold")
    table = Table(box=None, padding=(0, 1, 0, 0))
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in NUMBERS else "left", overflow="fold")
    rows = report.rules.to_dicts()
    for row in rows:
        table.add_row(*_cells(row))
    notes = [note for row in rows for note in _notes(row)]
    legend = Text(
        "r: correlation of a rule's sum per execution with the reward of evaluations", "dim"
    )
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


def _number(value: float | None, spec: str) -> str:
    return "" if value is None else format(value, spec)
