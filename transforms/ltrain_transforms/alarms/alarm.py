"""An alarm: an observation in the latest wave of a run, and a kind of alarm."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ltrain_transforms.alarms.figures import WaveFigures

SHORT_ID = 12
"""Characters of an id in a sentence; `ltrain show` takes the beginning of an id."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """An observation with its evidence; it is not a verdict."""

    name: str
    """Its kind, a key of `ALARMS`."""
    wave: int
    message: str
    """The sentence: the waves that are compared and the sizes of what changed."""
    subject: str = ""
    """The rule, the tool or the drop reason that it is about, or `longer` and `shorter`; '' for the
    whole wave."""
    since: int | None = None
    """The first of the waves that the sentence compares; None: there is only one."""
    rollouts: tuple[str, ...] = ()
    """Ids of rollouts of the wave to read."""
    tasks: tuple[str, ...] = ()
    """Tasks of the wave to read, where the alarm is about groups."""

    @property
    def sentence(self) -> str:
        """The message, with the command that shows a rollout, or with a task to read."""
        if self.rollouts:
            return f"{self.message}; read `ltrain show {self.rollouts[0][:SHORT_ID]}`"
        return f"{self.message}; see task '{self.tasks[0]}'" if self.tasks else self.message

    @property
    def key(self) -> tuple[str, str]:
        """The identity of an alarm: an alarm of the next wave with the same key is a repetition."""
        return self.name, self.subject


Finder = Callable[[Sequence[WaveFigures]], Iterable[Alarm]]
"""Yields the alarms of the last of some waves."""


@dataclass(frozen=True, slots=True)
class AlarmKind:
    """One kind of alarm, and its row in the documentation."""

    find: Finder
    looks_at: str
    fires: str
    """When it is raised, with its thresholds."""
