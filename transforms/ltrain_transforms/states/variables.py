"""The variables of one execution and their current values, while its calls are read."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ltrain_transforms.states.values import (
    combine_hashes,
    json_and_digest,
    search_texts,
    variable_hash,
    without_ids,
)
from ltrain_transforms.traces import parse_json

Row = tuple[str, int, str, str, str, str | None]
"""Cells of `STATES`."""


class PendingWrite(NamedTuple):
    """A write that takes effect at a later call."""

    at: int
    """When it was written, in nanoseconds."""
    by: str
    variable: str
    value: Any
    id: str | None
    """The tool-call id that the value answers."""
    always: bool
    """Whether an equal value makes a row too."""


@dataclass(slots=True)
class CurrentValue:
    """The value of a variable."""

    value: Any
    id: str | None
    """The tool-call id that the value answers."""
    comparable: Any
    """The value without the parts that differ between equal states."""
    search_texts: tuple[str, ...] | None = None
    """The texts to search for in prompts; None until the first search."""

    @classmethod
    def from_value(
        cls, value: Any, id: str | None, before: "CurrentValue | None"
    ) -> "CurrentValue":
        """Hold a value; where a list only grew since `before`, process only the new items."""
        if before is not None and type(value) is list and type(before.value) is list:
            length = len(before.value)
            if length and value[:length] == before.value:
                added, texts = value[length:], before.search_texts
                if texts is not None:
                    texts += search_texts(added)
                return cls(value, id, before.comparable + without_ids(added), texts)
        return cls(value, id, without_ids(value))


Lookups = dict[str, tuple[CurrentValue, bool]]
"""By variable: the value that was searched for in a text, and whether the text holds it."""


def is_different(one: Any, other: Any) -> bool:
    """Return whether two values differ; true differs from 1."""
    return type(one) is not type(other) or one != other


@dataclass(slots=True)
class Variables:
    """The current values of one execution, and the rows of `STATES` written so far."""

    execution_id: str
    current: dict[str, CurrentValue] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    graph_hashes: dict[str, int] = field(default_factory=dict)
    """The part of a state's digest that each variable of a graph's state adds."""
    result_ids: set[str] = field(default_factory=set)
    """Ids of the tool calls whose result was written."""
    _state_digest: str | None = None

    def write(
        self,
        t: int,
        variable: str,
        value: Any,
        by: str | None,
        *,
        id: str | None = None,
        always: bool = False,
        graph: bool = False,
    ) -> None:
        """Set a variable and add a row where its value changed.

        Args:
            id: the tool-call id that the value answers.
            always: add a row also where the value is the same.
            graph: the variable is a key of a graph's state.
        """
        if id is not None:
            self.result_ids.add(id)
        if not graph and variable in self.graph_hashes:
            return
        old = self.current.get(variable)
        if old is not None and not always and not is_different(old.value, value):
            return
        new = self.current[variable] = CurrentValue.from_value(value, id, old)
        text, digest = json_and_digest(value, new.comparable)
        self.rows.append((self.execution_id, t, variable, text, digest, by))
        if graph:
            self.graph_hashes[variable] = variable_hash(variable, digest)
            self._state_digest = None

    @property
    def state_digest(self) -> str | None:
        """Digest of the graph's state; None before any of it was written."""
        if self._state_digest is None and self.graph_hashes:
            self._state_digest = combine_hashes(self.graph_hashes.values())
        return self._state_digest

    def find_in(
        self, text: str, lookups: Lookups | None = None, added: str | None = None
    ) -> list[str]:
        """Return the variables whose value occurs in `text`.

        Args:
            lookups: earlier results for the same text without `added`; they are updated.
            added: the end of `text`, if the rest was searched before.
        """
        occurring = []
        for variable, current in self.current.items():
            if (texts := current.search_texts) is None:
                texts = current.search_texts = search_texts(current.value)
            known = lookups.get(variable) if lookups else None
            if known is not None and added is not None and known[0] is current:
                occurs = known[1] or _occurs(texts, added)
            else:
                occurs = _occurs(texts, text)
            if lookups is not None:
                lookups[variable] = current, occurs
            if occurs:
                occurring.append(variable)
        return occurring

    def results_of(self, ids: Collection[str]) -> list[str]:
        """Return the variables that hold the result of one of these tool calls."""
        if not ids:
            return []
        return [variable for variable, current in self.current.items() if current.id in ids]

    def rename(self, by: str, name: Callable[[str], str]) -> None:
        """Rename the variables that `by` wrote: a later call shows what the text was."""
        for index, row in enumerate(self.rows):
            if row[5] == by and (new := name(row[2])) != row[2]:
                self.rows[index] = (*row[:2], new, *row[3:])
                self.current[new] = self.current.pop(row[2])
                before = next((r for r in reversed(self.rows[:index]) if r[2] == row[2]), None)
                if before is not None:
                    old = CurrentValue.from_value(parse_json(before[3]), None, None)
                    self.current[row[2]] = old


def _occurs(texts: tuple[str, ...], text: str) -> bool:
    for one in texts:  # noqa: SIM110 (a generator costs more than the search)
        if one in text:
            return True
    return False
