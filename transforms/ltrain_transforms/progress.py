"""How far long work is, on a terminal; elsewhere nothing is written."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from ltrain_transforms.build import Progress as Told
from ltrain_transforms.interrupt import held_back


@contextmanager
def followed(**phases: str) -> Iterator[Told]:
    """Show a bar a phase on standard error, and hear ctrl-C between two steps of the work.

    Args:
        phases: of each what it counts.
    """
    columns = (
        TextColumn("{task.description:<6}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    shown = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with held_back() as due, shown:
        tasks: dict[str, TaskID] = {}

        def progress(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = shown.add_task(phase, unit=phases[phase])
            shown.update(tasks[phase], completed=done, total=total)
            due()

        yield progress
