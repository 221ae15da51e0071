"""One row per task: the row of its first execution, in the order of execution ids, that has one."""

from dataclasses import dataclass, field

from ltrain_transforms.exports.conversion_files import ExportJob, Piece


@dataclass(slots=True)
class TaskRows:
    job: ExportJob
    executions: dict[str, list[str]] = field(default_factory=dict)
    """The ids of the executions of each task."""
    rows: dict[str, Piece] = field(default_factory=dict)
    """The row of each task."""

    def add_execution(self, task: str, execution: str) -> None:
        """Count an execution to the lineage of its task."""
        self.executions.setdefault(task, []).append(execution)

    def add_row(self, task: str, execution: str, row: bytes) -> None:
        """Store the row of an execution, unless an earlier execution of the task has one."""
        stored = self.rows.get(task)
        if stored is None or execution < stored.key:
            self.rows[task] = Piece(execution, self.job.store(row), [self.executions[task]])

    def pieces(self) -> list[Piece]:
        """Return the rows in order; the lineage of each is every execution of its task."""
        for ids in self.executions.values():
            ids.sort()
        return sorted(self.rows.values())

    @property
    def without_row(self) -> list[str]:
        """The ids of the executions whose task has no row."""
        tasks = self.executions.keys() - self.rows.keys()
        return [execution for task in tasks for execution in self.executions[task]]
