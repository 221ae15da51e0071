"""How a rollout, a run, a dataset and a policy look in a terminal, from 60 columns on."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree as Branches

from ltrain_instrument.terminal import visible
from ltrain_transforms.show import credit, words
from ltrain_transforms.show.report import Facts, Grid, Report, told
from ltrain_transforms.show.tree import Attempt, Row, Step, Tree
from ltrain_transforms.show.words import short

TEXT = 240
"""Characters of what a call said; the page has all of it."""
VALUE = 100
"""Characters of a state variable."""
DEEPEST = 8
"""Levels of four columns each; a call that lies deeper says how deep."""
LONGEST = 60
"""Most columns that a cell without a space is given."""
SENTENCE = 26
"""Fewest that one with spaces is given."""


def show(shown: Tree | Report, console: Console) -> None:
    """Print it."""
    width = console.width
    parts = _tree(shown) if isinstance(shown, Tree) else _report(shown, width)
    for part in parts:
        console.print(part, highlight=False)


def _tree(shown: Tree) -> Iterator[RenderableType]:
    yield Text(shown.title, "bold")
    for attempt in shown.attempts:
        yield _attempt(attempt)
    if shown.drops:
        yield Text("Spans that are in no call", "bold")
        for row in shown.drops:
            yield Text(f"  {row['id']} dropped: {visible(credit.drop(row))}")
    yield Text(f"judged by {shown.judged_by}", "dim")


def _attempt(attempt: Attempt) -> RenderableType:
    head = Text(visible(credit.place(attempt.execution)))
    head.append(f"\n{credit.ending(attempt)}")
    if fault := credit.fault(attempt):
        head.append(f"\n{fault}", "yellow")
    head.append(f"\n{credit.standing(attempt)}")
    for reward in attempt.rewards:
        head.append(f"\n  reward {visible(credit.given(reward))}", _sign(reward.value))
    for row in attempt.drops:
        head.append(f"\n  dropped {visible(credit.drop(row))}", "yellow")
    for row in attempt.inputs:
        head.append(f"\n  input {_variable(row)}")
    return Group(head, *_branches(attempt.steps))


def _branches(steps: Sequence[Step]) -> Iterator[Branches]:
    """Hang each call below the one that encloses it."""
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


def _step(step: Step) -> RenderableType:
    line, details = _head(step), Text("\n").join(_details(step))
    return Group(line, Padding(details, (0, 0, 0, 2))) if details.plain else line


def _head(step: Step) -> Text:
    """Say which call it is, when it began, how long it took and how it ended."""
    call = step.call
    deep = f"(level {step.depth}) " if step.depth > DEEPEST else ""
    line = Text(f"#{call['seq']} {deep}", "dim", overflow="fold")
    line.append(f"{call['kind']} {visible(call['name'] or '')}", "bold")
    where = words.place(call)
    if where and where != call["name"]:
        line.append(f" in {visible(where)}")
    line.append(f"  {step.offset:+.3f} s, {step.seconds:.3f} s  ", "dim")
    line.append(visible(words.status(call)), "red" if call["status"] == "error" else "green")
    measured = "  ".join(filter(None, (words.tokens(call), words.version(call))))
    return line.append(f"  {visible(measured)}" if measured else "", "dim")


def _details(step: Step) -> Iterator[Text]:
    """Give a line each of what a call said, wrote, was given, and became."""
    if text := short(words.said(step.call), TEXT):
        yield Text(text)
    for row in step.wrote:
        yield Text("wrote ", "cyan").append(_variable(row), "not bold")
    for reward in step.rewards:
        yield Text(f"reward {visible(credit.given(reward))}", _sign(reward.value))
    if said := credit.advantage(step):
        yield Text(said, "magenta")
    if said := credit.training(step):
        yield Text(f"trained {said}")
    if said := credit.doubt(step):
        yield Text(visible(said), "yellow")
    for row in step.drops:
        yield Text(f"dropped {visible(credit.drop(row))}", "yellow")


def _variable(row: Row) -> str:
    return f"{visible(row['variable'])} = {short(row['value'], VALUE)}"


def _sign(value: float) -> str:
    return "red" if value < 0 else "green"


def _report(shown: Report, width: int) -> Iterator[RenderableType]:
    head = Text(visible(shown.title), "bold")
    yield head.append(f"\n{visible(shown.subtitle)}", "not bold") if shown.subtitle else head
    for part in shown.parts:
        if isinstance(part, Facts):
            yield _facts(part)
        elif isinstance(part, Grid):  # the numbers of charts are in grids, too
            yield from _grid(part, width)


def _facts(part: Facts) -> RenderableType:
    made = _table()
    made.show_header = False
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in part.rows:
        made.add_row(Text(visible(name)), Text(visible(value)))
    return Group(_title(part.title), made)


def _title(text: str) -> Text:
    return Text.assemble("\n", (visible(text), "bold"))


def _table() -> Table:
    return Table(
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
    )


def _grid(part: Grid, width: int) -> Iterator[RenderableType]:
    """Lay out a grid; what is wider than the terminal goes on below, its first column again."""
    if not part.rows:
        yield _title(part.title).append(f": {part.empty}", "not bold")
        return
    cells = [[visible(told(cell)) for cell in row] for row in part.rows]
    title = part.title
    for places in _fitting(part, cells, width):
        yield _title(title)
        made = _table()
        for place in places:
            right = part.numeric[place]
            name = Text(visible(part.columns[place]))
            made.add_column(name, justify="right" if right else "left", overflow="fold")
        for row in cells:
            made.add_row(*(Text(row[place]) for place in places))
        yield made
        title = f"{part.title}, further columns"


def _fitting(part: Grid, cells: list[list[str]], width: int) -> Iterator[list[int]]:
    """Cut the columns into parts that fit, each with the first column."""
    widths = [
        max(cell_len(part.columns[place]), *(_needed(row[place]) for row in cells))
        for place in range(len(part.columns))
    ]
    places, used = [0], widths[0]
    for place in range(1, len(widths)):
        if used + 2 + widths[place] > width and len(places) > 1:
            yield places
            places, used = [0], widths[0]
        places.append(place)
        used += 2 + widths[place]
    yield places


def _needed(cell: str) -> int:
    """Give the columns a cell needs: a sentence may be folded, an id should not be."""
    return min(cell_len(cell), SENTENCE if " " in cell else LONGEST)
