"""Every task once: the row of its first execution that has one, by the executions' ids."""

from dataclasses import dataclass, field

from ltrain_transforms.exports.work import Piece, Work


@dataclass(slots=True)
class Firsts:
    work: Work
    asked: dict[str, list[str]] = field(default_factory=dict)
    """The executions of each task."""
    rows: dict[str, Piece] = field(default_factory=dict)

    def ask(self, task: str, execution: str) -> None:
        """Note that an execution was asked a task."""
        self.asked.setdefault(task, []).append(execution)

    def keep(self, task: str, execution: str, row: bytes) -> None:
        """Keep the row of an execution, unless an earlier one of the task has one."""
        known = self.rows.get(task)
        if known is None or execution < known.key:
            self.rows[task] = Piece(execution, self.work.keep(row), [self.asked[task]])

    def pieces(self) -> list[Piece]:
        """Give the rows in order, the executions that were asked the same as their lineage."""
        for executions in self.asked.values():
            executions.sort()
        return sorted(self.rows.values())

    @property
    def silent(self) -> list[str]:
        """Executions of tasks without a row."""
        return [one for task in self.asked.keys() - self.rows.keys() for one in self.asked[task]]
