"""Tasks: one JSON object a line, with an id, an input and any further keys."""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from ltrain_instrument.errors import LtrainError
from ltrain_train.errors import describe_fault


class BadTasks(LtrainError, ValueError):
    """A task file cannot be read."""


class Task(BaseModel):
    """One task."""

    model_config = ConfigDict(frozen=True, extra="allow")

    id: str = Field(min_length=1)
    input: Any
    """The agent's input; by default the agent may read no other key."""
    domain: str = ""

    _file_digest: str = PrivateAttr("")

    @property
    def file_digest(self) -> str:
        """Digest of the task file that the task was read from; '' if there was none."""
        return self._file_digest

    @property
    def json_input(self) -> Any:
        """The input as JSON can express it."""
        return self.model_dump(mode="json")["input"]

    @property
    def further_fields(self) -> dict[str, Any]:
        """The fields besides id, input and domain, such as the expected answer."""
        fields = self.model_dump(mode="json")
        return {name: value for name, value in fields.items() if name not in Task.model_fields}

    def visible_fields(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the fields that an agent may read: `names`, the id and the domain.

        The id and the domain are in the identity of all the agent's spans anyway.
        """
        fields = self.model_dump(mode="json")
        return {name: fields[name] for name in ("id", "domain", *names) if name in fields}

    def set_file_digest(self, file_digest: str) -> None:
        """Set the digest of the task's file."""
        self._file_digest = file_digest


def load_tasks(path: Path) -> list[Task]:
    """Read the tasks in `path`, skipping empty lines.

    Raises:
        BadTasks: when the file cannot be read, a line is not a task, or two tasks share an id.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadTasks(
            f"Cannot read tasks from {path}: {error}. Name a JSONL file of tasks."
        ) from error
    tasks = [
        _parse_task(path, number, line) for number, line in enumerate(lines, 1) if line.strip()
    ]
    if not tasks:
        raise BadTasks(f'{path} contains no task. Write lines like {{"id": "1", "input": "..."}}.')
    require_unique_ids(tasks, path)
    file_digest = tasks_digest(tasks)
    for task in tasks:
        task.set_file_digest(file_digest)
    return tasks


def require_unique_ids(tasks: Iterable[Task], where: Path | str = "The wave") -> None:
    """Check that task ids are unique."""
    ids: set[str] = set()
    for task in tasks:
        if task.id in ids:
            raise BadTasks(f"{where}: two tasks have the id '{task.id}'. Make the ids unique.")
        ids.add(task.id)


def tasks_digest(tasks: Iterable[Task]) -> str:
    """Return a hash of the tasks' content in order, independent of the file's formatting."""
    lines = "\n".join(task.model_dump_json() for task in tasks)
    return sha256(lines.encode()).hexdigest()[:16]


def _parse_task(path: Path, number: int, line: str) -> Task:
    try:
        return Task.model_validate_json(line)
    except ValidationError as error:
        raise BadTasks(
            f"{path}, line {number}: {describe_fault(error)}. "
            f'The line is: {line.strip()[:120]}. Write a task as {{"id": "1", "input": "..."}}; '
            "further keys are allowed."
        ) from error
