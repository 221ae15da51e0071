"""The held-out tasks of a run: its validation set and its test set."""

import json
import logging
from collections.abc import Collection, Iterable
from pathlib import Path

from ltrain_instrument.identity import Mode
from ltrain_train.rollout import Task, load_tasks
from ltrain_transforms.recipe import Rollout

_logger = logging.getLogger("ltrain.loop")


def load_held_out(
    folder: Path, rollout: Rollout, training: Collection[Task]
) -> dict[Mode, list[Task]]:
    """Return the tasks of validations and of tests, and warn of those that the run uses otherwise.

    Raises:
        BadTasks: when a file cannot be read.
    """
    validation, test = (
        load_tasks(folder / file) if file else [] for file in (rollout.validation, rollout.test)
    )
    _warn_of_leaks("validation", validation, "tasks", training)
    _warn_of_leaks("test", test, "tasks", training)
    _warn_of_leaks("test", test, "validation", validation)
    return {"val": validation, "test": test}


def count_leaks(held_out: Iterable[Task], others: Iterable[Task]) -> int:
    """Return how many held-out tasks are also among others.

    Tasks are the same if they have the same id and input, or everything but the id is the same.
    """
    known = {key for task in others for key in _keys(task)}
    return sum(not known.isdisjoint(_keys(task)) for task in held_out)


def _keys(task: Task) -> set[tuple[str, str]]:
    content = task.model_dump(mode="json")
    name = content.pop("id")
    return {
        (name, json.dumps(content["input"], sort_keys=True)),
        ("", json.dumps(content, sort_keys=True)),
    }


def _warn_of_leaks(
    key: str, held_out: Collection[Task], other: str, others: Collection[Task]
) -> None:
    if leaks := count_leaks(held_out, others):
        _logger.warning(
            "ltrain: %d of the %d tasks in rollout.%s are also in rollout.%s. Their scores say "
            "nothing about new tasks: remove them from one of the two files.",
            *(leaks, len(held_out), key, other),
        )
