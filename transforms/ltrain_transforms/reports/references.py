"""The kinds of ids, the id as a user typed it, and references from one report to another."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    DATASET = "dataset"
    """A folder that `ltrain build` wrote, or the id of one in LTRAIN_HOME/datasets."""
    POLICY = "policy"
    """`NAME` or `NAME@VERSION`, in LTRAIN_HOME/policies."""
    RUN = "run"
    """The name of a run in the store."""
    ROLLOUT = "rollout"
    """The beginning of the id of a rollout in the store."""
    TRACE = "trace"
    """The beginning of the id of a trace in the store."""
    SESSION = "session"
    """The beginning of the id of a session in the store."""
    SPAN = "span"
    """The whole id of a span in the store: its rollout or trace is shown."""


@dataclass(frozen=True, slots=True)
class Identifier:
    """An id as the user typed it."""

    text: str
    kinds: tuple[Kind, ...]
    """The kinds to search."""

    @classmethod
    def parse(cls, text: str) -> "Identifier":
        kind, colon, rest = text.partition(":")
        if colon and kind in set(Kind):
            return cls(rest, (Kind(kind),))
        return cls(text, tuple(Kind))


@dataclass(frozen=True, slots=True)
class Reference:
    """A name in a report of something that has a report of its own."""

    kind: Kind
    id: str
    label: str = ""
    """The text of the reference; '' stands for the id."""

    def __str__(self) -> str:
        return self.label or self.id


@dataclass(frozen=True, slots=True)
class WaveReference:
    """A wave in the report on its run."""

    run: str
    mode: str
    wave: int

    def __str__(self) -> str:
        return f"{self.mode} {self.wave}"


@dataclass(frozen=True, slots=True)
class GroupReference:
    """The rollouts of one task in a wave."""

    run: str
    mode: str
    wave: int
    task: str
    label: str = ""
    """The text of the reference; '' stands for the task."""

    def __str__(self) -> str:
        return self.label or self.task


AnyReference = Reference | WaveReference | GroupReference
