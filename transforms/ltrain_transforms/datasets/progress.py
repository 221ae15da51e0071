"""Progress bars of long work on a terminal; without a terminal nothing is written."""

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

from ltrain_transforms.datasets.build import Progress as ProgressCallback
from ltrain_transforms.datasets.interrupt import defer_interrupts


@contextmanager
def show_progress(**phases: str) -> Iterator[ProgressCallback]:
    """Show one bar per phase on standard error, and raise KeyboardInterrupt between two steps.

    Args:
        phases: for each phase the unit that it counts.
    """
    columns = (
        TextColumn("{task.description:<6}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with defer_interrupts() as raise_if_interrupted, bars:
        tasks: dict[str, TaskID] = {}

        def progress(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, unit=phases[phase])
            bars.update(tasks[phase], completed=done, total=total)
            raise_if_interrupted()

        yield progress
