"""The line that says what a run does right now."""

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from ltrain_instrument.identity import Identity
from ltrain_train.runs.report import Progress, RolloutProgress
from ltrain_train.workers import Outcome, RolloutResult


class Shown(Progress):
    """Keeps the texts."""

    def __init__(self) -> None:
        super().__init__(enabled=False)
        self.texts: list[str] = []

    def show(self, text: str) -> None:
        self.texts.append(text)


def result(outcome: Outcome = Outcome.OK, tokens: int = 0) -> RolloutResult:
    return RolloutResult(
        identity=Identity(),
        outcome=outcome,
        reason="",
        rewards={},
        seconds=1.0,
        llm_calls=1,
        tokens=tokens,
    )


def clock(*times: float) -> Callable[[], float]:
    values = iter(times)
    return lambda: next(values)


def test_rollouts_failures_and_tokens_a_second_are_counted() -> None:
    shown = Shown()
    counter = RolloutProgress(shown, "train", 3, 3, clock(100, 100, 101, 102, 104))
    counter.add(result(tokens=50))
    counter.add(result(Outcome.ERROR, tokens=10))
    counter.add(result(tokens=40))
    assert shown.texts == [
        "wave train 3: 0 of 3 rollouts",
        "wave train 3: 1 of 3 rollouts, 50 tokens/s",
        "wave train 3: 2 of 3 rollouts, 1 failed, 30 tokens/s",
        "wave train 3: 3 of 3 rollouts, 1 failed, 25 tokens/s",
    ]


def test_calls_without_known_tokens_show_no_speed() -> None:
    shown = Shown()
    RolloutProgress(shown, "val", 0, 1, clock(0, 0, 1)).add(result())
    assert shown.texts[-1] == "wave val 0: 1 of 1 rollouts"


def test_a_terminal_shows_the_line_and_removes_it() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with Progress(console=console) as progress:
        progress.show("loading the model")
        with progress.paused():
            console.print("a result")
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "loading the model" in text and "a result" in text
    assert text.endswith("\x1b[2K") or "\x1b[2K" in text.rpartition("a result")[2]


@pytest.mark.parametrize(("terminal", "enabled"), [(False, True), (True, False)])
def test_elsewhere_nothing_is_written(terminal: bool, enabled: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
    with Progress(enabled=enabled, console=console) as progress:
        progress.show("loading the model")
        with progress.paused():
            pass
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]
