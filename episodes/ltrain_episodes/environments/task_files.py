"""The tasks of an environment as files: `python -m ltrain_episodes.environments.task_files`.

It reads a request as JSON from its standard input, and writes `train.jsonl`, `validation.jsonl` and
`summary.json` to a folder. A task is held out by its id alone, so it stays where it is when the
environment has more tasks. A task that repeats an earlier id is left out and counted.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from ltrain_episodes.environment import BadEnvironment
from ltrain_episodes.environments.task_environment import HELD_OUT, Task, open_environment
from ltrain_instrument.errors import LtrainError

FAILED = 3
"""Exit code of an environment that cannot be used; the reason is in standard error."""


@dataclass(frozen=True)
class TaskRequest:
    """The environment, and which of its tasks are wanted."""

    environment: str
    options: Mapping[str, Any]
    held_out_options: Mapping[str, Any]
    """Options of the held-out tasks that replace those of `options`; empty: a share is held out."""
    held_out_share: float
    limit: int | None
    """Most tasks to train on, and most held-out ones."""

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse a request."""
        return cls(**json.loads(text))


def write_task_files(request: TaskRequest, folder: Path) -> None:
    """Write the tasks of an environment, and a summary.

    Raises:
        BadEnvironment: when the environment cannot be used, or has no task.
    """
    environment = open_environment(request.environment, request.options)
    tasks, repeated = _distinct(environment.tasks(request.limit))
    if not tasks:
        raise BadEnvironment(f"The environment '{request.environment}' has no task.")
    if request.held_out_options:
        held_out, again = _list_held_out(request, tasks)
        repeated += again
    else:
        held_out = {name: tasks.pop(name) for name in _share(tasks, request.held_out_share)}
    _write_lines(folder / "train.jsonl", tasks.values())
    _write_lines(folder / "validation.jsonl", held_out.values())
    counts = {"validation": len(held_out), "repeated": repeated}
    summary = {**counts, "agents": [*environment.agents]}
    (folder / "summary.json").write_text(json.dumps(summary))


def _list_held_out(request: TaskRequest, known: Iterable[str]) -> tuple[dict[str, Task], int]:
    """Return the tasks with the options of held-out ones, without the tasks to train on."""
    options = {**request.options, **request.held_out_options}
    environment = open_environment(request.environment, options)
    found, repeated = _distinct(environment.tasks(request.limit), known)
    return {name: {**task, HELD_OUT: True} for name, task in found.items()}, repeated


def _distinct(tasks: Iterable[Task], known: Iterable[str] = ()) -> tuple[dict[str, Task], int]:
    """Return the tasks by id, without those of known ids, and the number of the others."""
    found, taken, repeated = dict[str, Task](), frozenset(known), 0
    for task in tasks:
        if task["id"] in taken or task["id"] in found:
            repeated += 1
        else:
            found[task["id"]] = task
    return found, repeated


def _share(names: Iterable[str], share: float) -> list[str]:
    """Return the ids of a share of the tasks, of two or more at least one."""
    places = sorted((sha256(name.encode()).digest()[:4], name) for name in names)
    limit = int(share * 2**32)
    chosen = [name for place, name in places if int.from_bytes(place) < limit]
    return chosen or [name for _, name in places[: bool(share and len(places) > 1)]]


def _write_lines(path: Path, tasks: Iterable[Task]) -> None:
    lines = (json.dumps(_as_line(task), ensure_ascii=False) for task in tasks)
    path.write_text("".join(f"{line}\n" for line in lines))


def _as_line(task: Task) -> dict[str, Any]:
    """Return a task of a recipe: what only the environment reads is below `environment`."""
    own = {key: value for key, value in task.items() if key not in ("id", "input")}
    return {"id": task["id"], "input": task["input"], "environment": own}


def run() -> None:
    """Answer the request in standard input."""
    sys.path.insert(0, os.getcwd())  # as in the worker: modules beside the recipe
    try:
        write_task_files(TaskRequest.read(sys.stdin.read()), Path(sys.argv[1]))
    except LtrainError as error:
        print(error, file=sys.stderr)
        sys.exit(FAILED)


if __name__ == "__main__":
    run()
