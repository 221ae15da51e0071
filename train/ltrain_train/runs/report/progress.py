"""The current step of a run: one rewritten line on a terminal, and nothing elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner

from ltrain_train.workers import RolloutResult


class Progress(AbstractContextManager["Progress"]):
    """The line, on stderr; standard output is left to results."""

    def __init__(self, *, enabled: bool = True, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        self._spinner = Spinner("dots")
        self._live = (
            Live(
                self._spinner,
                console=console,
                refresh_per_second=4,
                transient=True,
                redirect_stdout=False,  # it may be a file
            )
            if enabled and console.is_terminal
            else None
        )

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def show(self, text: str) -> None:
        """Replace the line."""
        self._spinner.update(text=text)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Remove the line while something is printed."""
        if self._live:
            self._live.stop()
        try:
            yield
        finally:
            if self._live:
                self._live.start()


class RolloutProgress:
    """Counts the rollouts of a wave, and the tokens of their calls, as they end."""

    def __init__(
        self,
        progress: Progress,
        mode: str,
        wave: int,
        rollouts: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._progress, self._clock, self._began = progress, clock, clock()
        self._wave, self._rollouts = f"wave {mode} {wave}", rollouts
        self._ended = self._failed = self._tokens = 0
        self._show()

    def add(self, result: RolloutResult) -> None:
        """Count a rollout that has ended."""
        self._ended += 1
        self._failed += result.outcome != "ok"
        self._tokens += result.tokens
        self._show()

    def _show(self) -> None:
        failed = f", {self._failed} failed" if self._failed else ""
        seconds = self._clock() - self._began
        speed = f", {self._tokens / seconds:.0f} tokens/s" if self._tokens and seconds else ""
        self._progress.show(
            f"{self._wave}: {self._ended} of {self._rollouts} rollouts{failed}{speed}"
        )
