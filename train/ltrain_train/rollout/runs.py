"""The runs of `ltrain rollout`: a killed run is continued, a finished one is followed by the next.

A run's folder contains `run.json`, with its options and whether it is finished, and its attempt
log.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from ltrain_instrument.files import hold_file, path_component, write_file


@dataclass(slots=True)
class Run:
    """One run of `ltrain rollout` and its `run.json`."""

    folder: Path
    name: str
    request: dict[str, str | int | float]
    """The options of the run; it is continued only by a call with equal options."""
    finished: bool = False

    @property
    def resumed(self) -> bool:
        """Whether an earlier process began the run."""
        return (self.folder / "run.json").exists()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Mark the folder of the run as used in the block, however the process ends."""
        self.save()
        descriptor = hold_file(self.folder)
        try:
            yield
        finally:
            os.close(descriptor)

    def save(self) -> None:
        """Replace `run.json` atomically."""
        content = {"name": self.name, "options": self.request, "finished": self.finished}
        write_file(self.folder / "run.json", json.dumps(content, indent=1) + "\n")


def open_run(runs: Path, name: str, request: Mapping[str, str | int | float]) -> Run:
    """Return the last run of this name if it is unfinished with equal options, else a new one."""
    last, next_name = last_and_next_name(runs, name)
    previous = _read_run(runs / path_component(last)) if last else None
    if previous is not None and not previous.finished and previous.request == dict(request):
        return previous
    return Run(runs / path_component(next_name), next_name, dict(request))


def last_and_next_name(runs: Path, name: str) -> tuple[str | None, str]:
    """Return the last of `name`, `name-2`, … that has a folder, and the name after it."""
    numbered = (name if number == 1 else f"{name}-{number}" for number in count(1))
    last, next_name = None, next(numbered)
    while (runs / path_component(next_name)).exists():
        last, next_name = next_name, next(numbered)
    return last, next_name


def _read_run(folder: Path) -> Run | None:
    try:
        content = json.loads((folder / "run.json").read_text())
    except FileNotFoundError:
        return None  # another command made the run
    options = content["options" if "options" in content else "asked"]  # an older name
    return Run(folder, content["name"], options, content["finished"])
