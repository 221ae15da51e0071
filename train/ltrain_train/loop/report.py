"""The printed report of a run: one line for each wave, then a table and the time of each phase."""

import shlex
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.table import Table

from ltrain_train.loop.journal import Journal, Wave
from ltrain_train.scores import mean, mean_interval, paired_differences
from ltrain_transforms.recipe import Recipe

PHASES = ("generate", "settle", "build", "train", "load")
PHASE_HEADINGS = ("gen", "settle", "build", "train", "load")

EQUAL_REWARDS = frozenset({"no_spread", "superseded"})
"""Drop reasons of a wave in which all rewards within each group are equal."""

ENGINE_PHASES = ("generate", "train", "load")
"""Phases that sample tokens, train the policy, or write and load weights."""


def describe_start(journal: Journal, recipe: Recipe, tasks: int, validation: int) -> str:
    """Return a sentence that says where a run starts or goes on, and what it does.

    Args:
        tasks: number of tasks.
        validation: number of held-out tasks.
    """
    updates, version = recipe.train.updates, f"{journal.policy}@{journal.latest}"
    if journal.waves:
        done = f"update {journal.updates} of {updates}"
        return f"Run {journal.run} goes on after {done}, from {version}."
    rollout = recipe.rollout
    wave = (
        f" of {min(tasks, rollout.tasks_per_wave)} tasks, {rollout.rollouts_per_task} rollouts each"
        if rollout
        else ""
    )
    held_out = f"; {validation} held-out tasks" if validation else "; no held-out tasks"
    return f"Run {journal.run} starts from {version}: {updates} updates{wave}{held_out}."


def time_left(wave: Wave, updates: int) -> str:
    """Return how long the updates after `wave` take if each takes as long; '' after the last."""
    left = updates - wave.wave - 1
    minutes = left * sum(wave.seconds.values()) / 60
    return f"About {minutes:.0f} minutes left." if left and minutes >= 1 else ""


def held_out_scores(journal: Journal) -> Iterator[str]:
    """Yield the first and the last score on held-out tasks, and their paired difference."""
    waves = [wave for wave in journal.waves if wave.mode == "val" and wave.tasks]
    if not waves:
        return
    first, last = waves[0], waves[-1]
    yield f"Held-out tasks: {_score(first)}" + (
        f", then {_score(last)}." if last is not first else "."
    )
    differences = list(paired_differences(first.tasks, last.tasks).values())
    average = mean(differences)
    if last is not first and average is not None:
        interval = mean_interval(differences)
        between = f" {interval}" if interval else ", without an interval: all tasks differ alike"
        yield f"The difference is {average:+.3f}{between}; intervals are of 95 %, over tasks."


def _score(wave: Wave) -> str:
    scores = list(wave.tasks.values())
    interval = mean_interval(scores)
    return f"{mean(scores):.3f}{f' {interval}' if interval else ''} with v{wave.version}"


def next_commands(journal: Journal) -> Iterator[str]:
    """Yield what to do after a run, as commands."""
    yield "Next:"
    yield f"  ltrain show {shlex.quote(f'run:{journal.run}')} --html run.html"
    yield f"  ltrain serve --policy {journal.policy}   # serves {journal.policy}@{journal.latest}"


def wave_line(wave: Wave) -> str:
    """Return a wave's scores, the seconds of each phase, and a line for each alarm."""
    scores = "  ".join(f"{name} {value:.3f}" for name, value in wave.scores.items())
    time_spent = "  ".join(
        f"{name} {wave.seconds[name]:.1f} s" for name in _ordered_phases(wave.seconds)
    )
    trained = f"  -> v{wave.published} from {wave.samples} rows" if wave.published else ""
    if wave.mode == "train" and wave.published is None:
        trained = f"  -> nothing to learn: {_why_nothing(wave)}"
        if wave.undone:
            trained = f"  -> no new version: {wave.undone} optimizer steps were undone"
    if "drift_k3" in wave.metrics:
        trained += f"  drift {wave.metrics['drift_k3']:.2g}"
    alarms = "".join(f"\nalarm: {sentence}" for sentence in wave.alarms)
    return f"{wave.mode} {wave.wave} (v{wave.version}): {scores}  | {time_spent}{trained}{alarms}"


def _why_nothing(wave: Wave) -> str:
    """Return why a wave has no row to train on, from its drops and its failed rollouts."""
    others = {name: n for name, n in wave.drops.items() if name not in EQUAL_REWARDS}
    drops = ", ".join(f"{count} {name}" for name, count in sorted(wave.drops.items()))
    why = f"its drops are {drops}" if others else "within each group all rewards are equal"
    return f"{why}. {wave.failures}" if wave.failures else why


def wave_table(journal: Journal) -> Table:
    """Return a table of the waves: scores, failures, rows and seconds of each phase."""
    names = _score_names(wave.scores for wave in journal.waves)
    title = f"Run {journal.run}, policy {journal.policy}; the last columns are seconds"
    table = Table(title=title, box=None, padding=(0, 1, 0, 0))
    table.add_column("wave", no_wrap=True)
    for name in ("v", "failed", *names, "rows", *PHASE_HEADINGS):
        table.add_column(name.replace("-", "-\n"), justify="right", no_wrap=True)
    for wave in journal.waves:
        table.add_row(*_cells(wave, names))
    return table


def time_spent(waves: Iterable[Wave], wall: float) -> str:
    """Return the seconds of each phase of the waves, and the share without an engine.

    Args:
        waves: those of one process.
        wall: seconds of that process.
    """
    total: dict[str, float] = {}
    for wave in waves:
        for name, seconds in wave.seconds.items():
            total[name] = total.get(name, 0.0) + seconds
    start = max(0.0, wall - sum(total.values()))
    phases = (f"{name} {total[name]:.0f} s" for name in _ordered_phases(total))
    parts = ", ".join([f"start and end {start:.0f} s", *phases])
    return (
        f"{wall:.0f} s: {parts}. "
        f"No generation, training or weight load in {idle_share(total, wall):.0%} of it."
    )


def _cells(wave: Wave, names: Sequence[str]) -> list[str]:
    failed = wave.rollouts - wave.outcomes.get("ok", 0)
    head = [f"{wave.mode} {wave.wave}", str(wave.version), str(failed)]
    scores = [f"{wave.scores[name]:.3f}" if name in wave.scores else "" for name in names]
    seconds = [f"{wave.seconds.get(phase, 0.0):.1f}" for phase in PHASES]
    return [*head, *scores, str(wave.samples or ""), *seconds]


def _ordered_phases(seconds: dict[str, float]) -> list[str]:
    ordered = [name for name in PHASES if name in seconds]
    return [*ordered, *sorted(set(seconds) - set(PHASES))]


def _score_names(mappings: Iterable[dict[str, float]]) -> list[str]:
    names: dict[str, None] = {}
    for mapping in mappings:
        names.update(dict.fromkeys(mapping))
    return list(names)


class Phases:
    """A stopwatch with one phase at a time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the seconds of the block to the phase `name`."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] += time.monotonic() - began

    def pop_seconds(self) -> dict[str, float]:
        """Return the seconds by phase so far, and reset them."""
        rounded = {name: round(seconds, 2) for name, seconds in self.seconds.items()}
        self.seconds.clear()
        return rounded


def idle_share(seconds: dict[str, float], wall: float) -> float:
    """Return the share of `wall` seconds in which no engine worked."""
    busy = sum(seconds.get(name, 0.0) for name in ENGINE_PHASES)
    return max(0.0, 1.0 - busy / wall) if wall > 0 else 0.0
