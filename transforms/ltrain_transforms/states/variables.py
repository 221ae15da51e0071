"""The variables of one execution and their values, while it is walked."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ltrain_transforms.states.values import comparable, dumped, needles, part, together
from ltrain_transforms.untrusted import parsed

Row = tuple[str, int, str, str, str, str | None]
"""Cells of `STATES`."""


class Due(NamedTuple):
    """A write that is to be seen later."""

    at: int
    """When it was written."""
    by: str
    variable: str
    value: Any
    id: str | None
    """The tool-call id that it answers."""
    again: bool
    """A row even where the value is the same."""


@dataclass(slots=True)
class Held:
    """A variable's value."""

    value: Any
    id: str | None
    """The tool-call id that it answers."""
    same: Any
    """The value without what differs between equal states."""
    sought: tuple[str, ...] | None = None
    """What is looked for in prompts; found out when one is read."""

    @classmethod
    def of(cls, value: Any, id: str | None, before: "Held | None") -> "Held":
        """Hold a value; of a list that only grew since `before`, look at what was added."""
        if before is not None and type(value) is list and type(before.value) is list:
            length = len(before.value)
            if length and value[:length] == before.value:
                added = value[length:]
                sought = None if before.sought is None else before.sought + needles(added)
                return cls(value, id, before.same + comparable(added), sought)
        return cls(value, id, comparable(value))


Found = dict[str, tuple[Held, bool]]
"""Which values were looked for in a text, and whether they are in it."""


def differ(one: Any, other: Any) -> bool:
    """Say whether a value is another one; true is not 1."""
    return type(one) is not type(other) or one != other


@dataclass(slots=True)
class Variables:
    execution_id: str
    held: dict[str, Held] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    graph: dict[str, int] = field(default_factory=dict)
    """What each variable of a graph's state adds to its digest."""
    ids: set[str] = field(default_factory=set)
    """Tool calls whose result was written."""
    _state: str | None = None

    def write(
        self,
        t: int,
        variable: str,
        value: Any,
        by: str | None,
        *,
        id: str | None = None,
        again: bool = False,
        graph: bool = False,
    ) -> None:
        """Add a row and hold the value.

        Args:
            id: the tool-call id that the value answers.
            again: a row even where the value is the same.
            graph: the variable is a key of a graph's state.
        """
        if id is not None:
            self.ids.add(id)
        if not graph and variable in self.graph:
            return
        held = self.held.get(variable)
        if held is not None and not again and not differ(held.value, value):
            return
        new = self.held[variable] = Held.of(value, id, held)
        text, hashed = dumped(value, new.same)
        self.rows.append((self.execution_id, t, variable, text, hashed, by))
        if graph:
            self.graph[variable], self._state = part(variable, hashed), None

    @property
    def state_digest(self) -> str | None:
        """Hash of the graph's state; null before anything of it was seen."""
        if self._state is None and self.graph:
            self._state = together(self.graph.values())
        return self._state

    def read(self, text: str, found: Found | None = None, added: str | None = None) -> list[str]:
        """Give the variables whose value occurs in `text`.

        Args:
            found: what is known of the text without `added`; it is brought up to date.
            added: its last part, if the rest was looked through before.
        """
        there = []
        for variable, held in self.held.items():
            if (sought := held.sought) is None:
                sought = held.sought = needles(held.value)
            known = found.get(variable) if found else None
            if known is not None and added is not None and known[0] is held:
                is_in = known[1] or _occurs(sought, added)
            else:
                is_in = _occurs(sought, text)
            if found is not None:
                found[variable] = held, is_in
            if is_in:
                there.append(variable)
        return there

    def answering(self, ids: Collection[str]) -> list[str]:
        """Give the variables that hold the result of one of these tool calls."""
        return [variable for variable, held in self.held.items() if held.id in ids] if ids else []

    def rename(self, by: str, name: Callable[[str], str]) -> None:
        """Call what `by` wrote otherwise: what it was is known only now."""
        for index, row in enumerate(self.rows):
            if row[5] == by and (new := name(row[2])) != row[2]:
                self.rows[index] = (*row[:2], new, *row[3:])
                self.held[new] = self.held.pop(row[2])
                before = next((r for r in reversed(self.rows[:index]) if r[2] == row[2]), None)
                if before is not None:
                    self.held[row[2]] = Held.of(parsed(before[3]), None, None)


def _occurs(sought: tuple[str, ...], text: str) -> bool:
    for one in sought:  # noqa: SIM110 (a generator costs more than the search)
        if one in text:
            return True
    return False
