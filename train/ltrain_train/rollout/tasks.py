"""Tasks: a JSON object a line, each with an id, an input and whatever else the agent wants."""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from ltrain_instrument.errors import LtrainError


class BadTasks(LtrainError, ValueError):
    """A task file that cannot be read; names the line, what was given and what is allowed."""


class Task(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")

    id: str = Field(min_length=1)
    input: Any
    """What the agent is asked; by default it sees no other key."""
    domain: str = ""

    _file: str = PrivateAttr("")

    @property
    def file(self) -> str:
        """Digest of the task file it was read from; '' where there was none."""
        return self._file

    def shown(self, fields: Iterable[str]) -> dict[str, Any]:
        """Return what an agent sees of it: `fields`, its id and its domain.

        The last two are in the identity of all its spans anyway.
        """
        whole = self.model_dump(mode="json")
        return {name: whole[name] for name in ("id", "domain", *fields) if name in whole}

    def read_from(self, file: str) -> None:
        """Note the digest of the file that it was read from."""
        self._file = file


def load_tasks(path: Path) -> list[Task]:
    """Read the tasks in `path`; empty lines are skipped.

    Raises:
        BadTasks: when there is no such file, a line is no task, or two tasks share an id.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadTasks(f"No tasks at {path}: {error}. Name a JSONL file of tasks.") from error
    tasks = [_task(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not tasks:
        raise BadTasks(f'{path} holds no task. A line is {{"id": "1", "input": "..."}}.')
    check_ids(tasks, path)
    file = digest(tasks)
    for task in tasks:
        task.read_from(file)
    return tasks


def check_ids(tasks: Iterable[Task], where: Path | str = "The wave") -> None:
    """Make sure that ids tell tasks apart.

    Raises:
        BadTasks: when two tasks share one.
    """
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise BadTasks(f"{where}: two tasks have the id '{task.id}'. Give each its own.")
        seen.add(task.id)


def digest(tasks: Iterable[Task]) -> str:
    """Hash what the tasks say, in their order, whatever the spelling of their file."""
    lines = "\n".join(task.model_dump_json() for task in tasks)
    return sha256(lines.encode()).hexdigest()[:16]


def _task(path: Path, number: int, line: str) -> Task:
    try:
        return Task.model_validate_json(line)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in fault["loc"])
        raise BadTasks(
            f"{path}, line {number}: {field + ': ' if field else ''}{fault['msg']}. "
            f'Given: {line.strip()[:120]}. A task is {{"id": "1", "input": "..."}}, '
            "with more keys as you like."
        ) from error
