"""Runs that `ltrain rollout` makes: a killed one goes on, a finished one is followed by the next.

A run's folder holds `run.json`, what was asked for and whether it is done, beside its ledger.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

from ltrain_instrument.private import make_private


@dataclass(slots=True)
class Run:
    folder: Path
    name: str
    asked: dict[str, str | int | float]
    """What was asked for; a run goes on only where the same is asked again."""
    finished: bool = False

    @property
    def resumed(self) -> bool:
        """Whether an earlier process began it."""
        return (self.folder / "run.json").exists()

    def save(self) -> None:
        """Write `run.json`, whole."""
        make_private(self.folder)
        said = {name: value for name, value in asdict(self).items() if name != "folder"}
        part = self.folder / "run.json.part"
        part.write_text(json.dumps(said, indent=1) + "\n")
        os.replace(part, self.folder / "run.json")


def open_run(runs: Path, name: str, asked: Mapping[str, str | int | float]) -> Run:
    """Go on with the last run called `name` where it is unfinished and asked for the same."""
    taken, free = last_and_next(runs, name)
    previous = _read(runs / taken) if taken else None
    if previous is not None and not previous.finished and previous.asked == dict(asked):
        return previous
    return Run(runs / free, free, dict(asked))


def last_and_next(runs: Path, name: str) -> tuple[str | None, str]:
    """Give the last run called `name`, `name-2`, … that has a folder, and the name after it."""
    numbered = (name if number == 1 else f"{name}-{number}" for number in count(1))
    taken, free = None, next(numbered)
    while (runs / free).exists():
        taken, free = free, next(numbered)
    return taken, free


def _read(folder: Path) -> Run | None:
    try:
        said = json.loads((folder / "run.json").read_text())
    except FileNotFoundError:
        return None  # another command's run: its name is taken
    return Run(folder, **said)
