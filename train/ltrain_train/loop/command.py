"""What `ltrain run` does and prints."""

import json
import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from ltrain_collector.store import Store
from ltrain_instrument import settings
from ltrain_instrument.errors import LtrainError
from ltrain_train.disk import disk_full, is_full
from ltrain_train.errors import BadRun
from ltrain_train.lock import RunLock, run_lock
from ltrain_train.loop import report
from ltrain_train.loop.journal import Journal
from ltrain_train.loop.once import Once, from_dataset, from_store
from ltrain_train.loop.start import Plan, run_online
from ltrain_transforms.dataset import Dataset
from ltrain_transforms.interrupt import interrupt_handler
from ltrain_transforms.recipe import Recipe

STDERR = 2
"""Its descriptor."""


def plan(path: Path, *, model: Path | None, updates: int | None, **rollout: Any) -> Plan:
    """Read a recipe and lay the command line's words over it.

    Raises:
        BadRecipe: when it cannot be read.
        BadRun: when tasks come without an agent, or an agent without tasks.
    """
    recipe = Recipe.load(path)
    given = {name: value for name, value in rollout.items() if value is not None}
    section = (recipe.rollout.model_dump() if recipe.rollout else {}) | given
    if given and (missing := {"tasks", "agent", "reward"} - section.keys()):
        wanted = ", ".join(f"--{name}" for name in sorted(missing))
        raise BadRun(f"An online run needs tasks, an agent and a reward. Missing: {wanted}.")
    said = recipe.model_dump(by_alias=True) | {"rollout": section or None}
    if updates is not None:
        said["train"] = recipe.train.model_dump() | {"updates": updates}
    return Plan(
        recipe=Recipe.model_validate(said),
        folder=path.parent,
        home=settings.HOME.read(),
        model=model,
    )


def online(given: Plan, *, as_json: bool) -> Journal:
    """Run online; a line a wave, then the table and where the time went."""
    console, began = Console(), time.monotonic()
    say = (
        (lambda wave: print(json.dumps(asdict(wave)), flush=True))
        if as_json
        else (lambda wave: console.print(report.line(wave), highlight=False, soft_wrap=True))
    )
    with _locked(given) as lock:
        journal = run_online(given, say, lock)
    if not as_json:
        console.print(report.table(journal))
        console.print(report.spent(journal, time.monotonic() - began), soft_wrap=True)
    return journal


def once(given: Plan, store: str | None, dataset: Path | None, *, as_json: bool) -> None:
    """Train once, from a dataset or else from the store, and say what came of it."""
    with _locked(given) as lock:
        if dataset is not None:
            done = from_dataset(given, Dataset.open(dataset), lock)
        else:
            with Store.open(store, create=False) as opened:
                done = from_store(given, opened, lock)
    _say(given, done, as_json=as_json)


def _say(given: Plan, done: Once, *, as_json: bool) -> None:
    said = {
        "dataset": done.dataset.id,
        "rows": done.update.report.rows,
        "version": done.update.version,
        "path": str(done.path),
        "served": done.served,
        "metrics": done.update.report.metrics,
    }
    if as_json:
        print(json.dumps(said))
        return
    print(
        f"Policy {given.policy} v{done.update.version} at {done.path}: trained on "
        f"{done.update.report.rows} rows of dataset {done.dataset.id}."
    )
    if not done.served:
        print(f"No gateway runs here; serve it with `ltrain serve --policy {given.policy}`.")


@contextmanager
def _locked(plan: Plan) -> Iterator[RunLock]:
    """Hold the plan's run and policy, and unwind on ctrl-C or SIGTERM.

    Raises:
        RunInUse: when another process works on one of them.
        DiskFull: when the block met a full disk.
    """
    try:
        with (
            run_lock(plan.home, run=plan.name, policy=plan.policy) as lock,
            interrupt_handler(partial(_interrupt, lock)),
        ):
            yield lock
    except Exception as error:  # Polars and Arrow have errors of their own for a full disk
        if isinstance(error, LtrainError) or not is_full(error):
            raise
        file = getattr(error, "filename", None) or plan.home
        raise disk_full(Path(file), "what the run writes") from error


def _interrupt(lock: RunLock, number: int, frame: FrameType | None) -> None:
    """Unwind, which stops every child, and print that; a signal while it unwinds changes nothing.

    Python loses an interrupt that falls into a finalizer: then the next signal unwinds.
    """
    if lock.unwinding or _unwinds(sys.exception()):
        _print(f"still stopping; `kill -9 {os.getpid()}` ends it at once.")
        return
    lock.stop()
    _print("stopping; the same command goes on from here.")
    raise KeyboardInterrupt


def _unwinds(error: BaseException | None) -> bool:
    """Return whether `error` is an interrupt, or was raised while one was handled."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _print(sentence: str) -> None:
    """Write to stderr from a signal handler: past its buffer, and only where it does not block."""
    with suppress(OSError):
        if select.select([], [STDERR], [], 0)[1]:
            os.write(STDERR, f"\nltrain: {sentence}\n".encode())
