"""How far a build is, on a terminal; elsewhere nothing is written."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ltrain_transforms.build import Progress as Told


@contextmanager
def bar() -> Iterator[Told]:
    """Show a bar a phase, of its batches, on standard error."""
    columns = (
        TextColumn("{task.description:<6}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("batches"),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as it:
        tasks = {phase: it.add_task(phase, total=None) for phase in ("trace", "rows")}
        yield lambda phase, done, total: it.update(tasks[phase], completed=done, total=total)
