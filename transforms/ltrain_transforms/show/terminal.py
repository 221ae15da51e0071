"""Render a rollout, a run, a dataset or a policy for a terminal of 60 columns or more."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree as Branches

from ltrain_instrument.machine import visible
from ltrain_transforms.reports import Facts, Grid, Report, Tiles, format_cell
from ltrain_transforms.show import credit, display_text
from ltrain_transforms.show.display_text import shorten
from ltrain_transforms.show.tree import Attempt, RolloutTree, Row, TreeCall

MAX_TEXT = 240
"""Characters of the output of a call; the page has more."""
MAX_VALUE = 100
"""Characters of a state variable."""
DEEPEST = 8
"""Maximum levels of indentation, four columns each; deeper calls show their level."""
MAX_WORD = 60
"""Maximum columns for a cell without spaces."""
MAX_SENTENCE = 26
"""Maximum columns that a cell with spaces needs, since it can be folded."""


def print_shown(shown: RolloutTree | Report, console: Console) -> None:
    """Print a rollout or a report."""
    width = console.width
    parts = _tree(shown) if isinstance(shown, RolloutTree) else _report(shown, width)
    for part in parts:
        console.print(part, highlight=False)


def _tree(shown: RolloutTree) -> Iterator[RenderableType]:
    yield Text(shown.title, "bold")
    for attempt in shown.attempts:
        yield _attempt(attempt)
    if shown.drops:
        yield Text("Spans that are in no call", "bold")
        for row in shown.drops:
            yield Text(f"  {row['id']} dropped {visible(credit.describe_drop(row))}")
    if shown.other_spans:
        yield Text(f"other spans: {shown.other_spans}, which describe no call", "dim")
    yield Text(f"judged by {shown.judged_by}", "dim")


def _attempt(attempt: Attempt) -> RenderableType:
    head = Text(visible(credit.describe_rollout(attempt.execution)))
    head.append(f"\n{credit.describe_ending(attempt)}")
    if faults := credit.describe_faults(attempt):
        head.append(f"\n{faults}", "yellow")
    head.append(f"\n{credit.describe_outcome(attempt)}")
    for reward in attempt.rewards:
        head.append(f"\n  reward {visible(credit.describe_reward(reward))}", _sign(reward.value))
        if reward.explanation:
            head.append(f"\n    {visible(shorten(reward.explanation, MAX_TEXT))}")
    for row in attempt.drops:
        head.append(f"\n  dropped {visible(credit.describe_drop(row))}", "yellow")
    for name, text in credit.describe_contents(attempt.execution):
        head.append(f"\n  {visible(name)} = {visible(shorten(text, MAX_TEXT))}")
    for row in attempt.inputs:
        head.append(f"\n  input {_variable(row)}")
    return Group(head, *_branches(attempt.steps))


def _branches(steps: Sequence[TreeCall]) -> Iterator[Branches]:
    """Yield the root calls as rich trees, with every call below the one that encloses it."""
    above: list[Branches] = []
    roots: list[Branches] = []
    for step in steps:
        del above[min(step.depth, DEEPEST) :]
        if above:
            above.append(above[-1].add(_step(step)))
        else:
            roots.append(Branches(_step(step), guide_style="dim"))
            above.append(roots[-1])
    yield from roots


def _step(step: TreeCall) -> RenderableType:
    line, details = _headline(step), Text("\n").join(_details(step))
    return Group(line, Padding(details, (0, 0, 0, 2))) if details.plain else line


def _headline(step: TreeCall) -> Text:
    """Return name, start, duration and status of a call."""
    call = step.call
    level = f"(level {step.depth}) " if step.depth > DEEPEST else ""
    line = Text(f"#{call['seq']} {level}", "dim", overflow="fold")
    line.append(f"{call['kind']} {visible(call['name'] or '')}", "bold")
    agent = display_text.agent_label(call)
    if agent and agent != call["name"]:
        line.append(f" in {visible(agent)}")
    line.append(f"  {step.times}  ", "dim")
    line.append(
        visible(display_text.call_status(call)), "red" if call["status"] == "error" else "green"
    )
    sampling = "  ".join(
        filter(None, (display_text.token_counts(call), display_text.version_label(call)))
    )
    return line.append(f"  {visible(sampling)}" if sampling else "", "dim")


def _details(step: TreeCall) -> Iterator[Text]:
    """Yield lines on the output, state changes, rewards, credit and drops of a call."""
    if text := shorten(display_text.output_text(step.call), MAX_TEXT):
        yield Text(text)
    for row in step.wrote:
        yield Text("wrote ", "cyan").append(_variable(row), "not bold")
    for reward in step.rewards:
        yield Text(f"reward {visible(credit.describe_reward(reward))}", _sign(reward.value))
        if reward.explanation:
            yield Text(f"  {visible(shorten(reward.explanation, MAX_TEXT))}")
    if advantage := credit.describe_advantage(step):
        yield Text(advantage, "magenta")
    if training := credit.describe_training(step):
        yield Text(f"trained {training}")
    if mismatch := credit.describe_mismatch(step):
        yield Text(visible(mismatch), "yellow")
    for row in step.drops:
        yield Text(f"dropped {visible(credit.describe_drop(row))}", "yellow")


def _variable(row: Row) -> str:
    return f"{visible(row['variable'])} = {shorten(row['value'], MAX_VALUE)}"


def _sign(value: float) -> str:
    return "red" if value < 0 else "green"


def _report(shown: Report, width: int) -> Iterator[RenderableType]:
    head = Text(visible(shown.title), "bold")
    yield head.append(f"\n{visible(shown.subtitle)}", "not bold") if shown.subtitle else head
    for part in shown.parts:
        if isinstance(part, Tiles):
            facts = [(each.name, f"{each.value}  {each.detail}".rstrip()) for each in part.rows]
            yield _facts(Facts("", tuple(facts)))
        if isinstance(part, Facts):
            yield _facts(part)
        elif isinstance(part, Grid):  # grids also hold the numbers of the charts
            yield from _grid(part, width)


def _facts(part: Facts) -> RenderableType:
    table = _table()
    table.show_header = False
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in part.rows:
        table.add_row(Text(visible(name)), Text(visible(format_cell(value))))
    return Group(_title(part.title), table)


def _title(text: str) -> Text:
    return Text.assemble("\n", (visible(text), "bold"))


def _table() -> Table:
    return Table(
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
    )


def _grid(part: Grid, width: int) -> Iterator[RenderableType]:
    """Yield the tables of a grid; columns that do not fit follow below, with the first column."""
    if not part.rows:
        yield _title(part.title).append(f": {part.empty}", "not bold")
        return
    cells = [[visible(format_cell(cell)) for cell in row] for row in part.rows]
    title = part.title
    for columns in _split_columns(part, cells, width):
        yield _title(title)
        table = _table()
        for column in columns:
            right = part.numeric[column]
            name = Text(visible(part.columns[column]))
            table.add_column(name, justify="right" if right else "left", overflow="fold")
        for row in cells:
            table.add_row(*(Text(row[column]) for column in columns))
        yield table
        title = f"{part.title}, further columns"


def _split_columns(part: Grid, cells: list[list[str]], width: int) -> Iterator[list[int]]:
    """Yield the indices of the columns of each table that fits, each with the first column."""
    widths = [
        max(cell_len(part.columns[column]), *(_cell_width(row[column]) for row in cells))
        for column in range(len(part.columns))
    ]
    columns, used = [0], widths[0]
    for column in range(1, len(widths)):
        if used + 2 + widths[column] > width and len(columns) > 1:
            yield columns
            columns, used = [0], widths[0]
        columns.append(column)
        used += 2 + widths[column]
    yield columns


def _cell_width(cell: str) -> int:
    """Return the columns that a cell needs: a sentence can be folded, an id should not be."""
    return min(cell_len(cell), MAX_SENTENCE if " " in cell else MAX_WORD)
