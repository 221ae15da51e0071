"""The journal of a run on disk: an append-only list of events, from which a killed run continues.

* An event is on disk before the run goes on. A line that a kill cut off does not count.
* A wave is recorded when its last event is there: of held-out tasks the evaluation, of a
  training wave the publication, or the training if it did not change the weights.
"""

import json
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from ltrain_instrument.files import hold_file, path_component, write_file
from ltrain_train.errors import BadJournal, describe_fault
from ltrain_train.rollout import last_and_next_name
from ltrain_train.runs.journal.wave import Wave
from ltrain_transforms.policy_file import PolicyVersion
from ltrain_transforms.run_events import (
    JOURNAL,
    AnyEvent,
    Completed,
    Dispatched,
    Evaluated,
    Failed,
    Finished,
    Group,
    Opened,
    Published,
    Repeated,
    Served,
    Started,
    Stopped,
    Trained,
    parse_events,
)

_logger = logging.getLogger("ltrain.loop")

Place = tuple[str, int]
"""Mode and number of a wave."""


@dataclass(slots=True, kw_only=True)
class Journal:
    """The events of one run, and the file that records them; several threads may use it."""

    folder: Path
    run: str
    recipe: str
    """Digest of the recipe."""
    policies: dict[str, int]
    """The version of each trained policy at the start of training."""
    events: list[AnyEvent] = field(default_factory=list)
    finished: bool = field(default=False, compare=False)
    waves: list[Wave] = field(default_factory=list, compare=False)
    """The recorded waves of all policies, in order."""
    completed: dict[Place, Completed] = field(default_factory=dict, compare=False)
    """The waves whose rollouts have ended."""
    repeated: dict[Place, dict[str, int]] = field(default_factory=dict, compare=False)
    """The last attempts, by rollout, of a wave that failed: they do not count."""
    evaluated: dict[Place, Evaluated] = field(default_factory=dict, compare=False)
    chosen: dict[str, int] = field(default_factory=dict, compare=False)
    """The earlier version of each policy that is served in place of the latest."""
    stopped: set[int] = field(default_factory=set, compare=False)
    """The training waves after which the run stopped on an alarm."""
    _trained: dict[tuple[str, int], Trained] = field(default_factory=dict, compare=False)
    _size: int = field(default=0, compare=False)
    """Bytes of the complete lines of the file."""
    _lock: threading.Lock = field(default_factory=threading.Lock, compare=False, repr=False)

    @property
    def path(self) -> Path:
        """The journal's file."""
        return self.folder / JOURNAL

    @property
    def has_begun(self) -> bool:
        """Whether a wave was dispatched, so that the store may have rollouts of the run."""
        return not all(isinstance(event, (Opened, Failed)) for event in self.events)

    @property
    def updates(self) -> int:
        """Number of training waves that have ended for every policy."""
        return min(self.of(policy).updates for policy in self.policies)

    @property
    def latest(self) -> dict[str, int]:
        """The latest version of each policy."""
        return {policy: self.of(policy).latest for policy in self.policies}

    def of(self, policy: str) -> "PolicyJournal":
        """Return what the journal tells of one of its policies."""
        return PolicyJournal(self, policy)

    def waves_of(self, mode: str, number: int) -> list[Wave]:
        """Return a recorded wave for each policy."""
        return [wave for wave in self.waves if (wave.mode, wave.wave) == (mode, number)]

    def dispatched(self, mode: str, number: int) -> list[str]:
        """Return the ids of the tasks of a wave that were dispatched."""
        found = (event for event in self.events if isinstance(event, Dispatched))
        waves = (event.tasks for event in found if (event.mode, event.wave) == (mode, number))
        return [task for tasks in waves for task in tasks]

    def open_groups(self) -> list[Group]:
        """Return the training groups that are in no completed wave, as they were dispatched."""
        waves = (wave for (mode, _), wave in self.completed.items() if mode == "train")
        completed = {group for wave in waves for group in wave.groups}
        return [
            (event.wave, task)
            for event in self.events
            if isinstance(event, Dispatched) and event.mode == "train"
            for task in event.tasks
            if (event.wave, task) not in completed
        ]

    @contextmanager
    def working(self, updates: int | None) -> Iterator[None]:
        """Record that a process works on the run in the block, and the error that ends it.

        The folder of the run is marked as used until then, however the process ends.
        """
        descriptor = hold_file(self.folder)
        try:
            self.add(Opened(updates=updates))
            yield
        except Exception as error:
            with suppress(OSError):  # a full disk may be the error
                self.add(Failed(error=str(error) or type(error).__name__))
            raise
        finally:
            os.close(descriptor)

    def start(self) -> None:
        """Write the file with its first event."""
        line = _encode(Started(run=self.run, recipe=self.recipe, policies=self.policies))
        write_file(self.path, line)
        self._size = len(line)

    def add(self, event: AnyEvent) -> None:
        """Append an event to the file, and then to the journal."""
        line = _encode(event)
        with self._lock:
            with self.path.open("r+b") as file:
                file.truncate(self._size)  # removes what a kill left of a line
                file.seek(self._size)
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            self._size += len(line)
            self._apply(event)

    def _apply(self, event: AnyEvent) -> None:
        self.events.append(event)
        self.finished = isinstance(event, Finished)
        match event:
            case Repeated():
                self.repeated[event.mode, event.wave] = event.attempts
                self.completed.pop((event.mode, event.wave), None)
            case Completed():
                self.completed[event.mode, event.wave] = event
            case Evaluated():
                self.evaluated[event.mode, event.wave] = event
                if event.mode != "train":
                    self.waves.extend(Wave.of(policy, event) for policy in event.policies)
            case Trained():
                self._trained[event.policy, event.wave] = event
                if not event.changed:
                    self._record(event.policy, event.wave, None)
            case Published():
                self.chosen.pop(event.policy, None)
                self._record(event.policy, event.wave, event.version)
            case Served():
                self.chosen[event.policy] = event.version
            case Stopped():
                self.stopped.add(event.wave)

    def _record(self, policy: str, number: int, published: int | None) -> None:
        evaluated = self.evaluated.get(("train", number))
        trained = self._trained.get((policy, number))
        if evaluated is None or trained is None:
            raise ValueError(f"wave {number} is published before it is trained")
        self.waves.append(Wave.of(policy, evaluated, trained, published))

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Return the journal in `folder`; None if there is none.

        Raises:
            BadJournal: when it cannot be read.
        """
        path = folder / JOURNAL
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            first, *events = parse_events(content)
            journal = cls(folder=folder, **first.model_dump(exclude={"event"}))
            journal._read(events)
        except ValueError as error:
            fault = describe_fault(error) if isinstance(error, ValidationError) else str(error)
            raise BadJournal(
                f"The journal '{path}' cannot be read ({fault}); another version of ltrain may "
                "have written it. Use that version, or rename the file: then the run is not "
                "continued, and its scores do not count."
            ) from error
        journal._size = content.rindex(b"\n") + 1
        return journal

    def _read(self, events: Iterable[AnyEvent]) -> None:
        for event in events:
            self._apply(event)


@dataclass(frozen=True, slots=True)
class PolicyJournal:
    """The part of a run's journal on one of its policies."""

    journal: Journal
    policy: str

    @property
    def run(self) -> str:
        """The run's name."""
        return self.journal.run

    @property
    def finished(self) -> bool:
        """Whether the run has ended."""
        return self.journal.finished

    @property
    def waves(self) -> list[Wave]:
        """The policy's recorded waves."""
        return [wave for wave in self.journal.waves if wave.policy == self.policy]

    @property
    def updates(self) -> int:
        """Number of finished training waves, those without a new version included."""
        return sum(wave.mode == "train" for wave in self.waves)

    @property
    def latest(self) -> int:
        """The policy's latest version: that of the start if the run has published none."""
        published = (wave.published for wave in reversed(self.waves))
        start = self.journal.policies[self.policy]
        return next((version for version in published if version is not None), start)

    @property
    def served(self) -> int:
        """The version that is served at the end: the latest, or the one that was chosen."""
        return self.journal.chosen.get(self.policy, self.latest)

    @property
    def checkpoints(self) -> Path:
        """Folder of the learner's checkpoints, each named after its version."""
        return self.journal.folder / "checkpoints" / self.policy

    def leads_to(self, current: PolicyVersion) -> bool:
        """Return whether `current` is the run's latest version, or one that the run made from it.

        A run that was killed between a publication and its journal has published the latter. One
        that was killed in its last test may have made the best version current.
        """
        home = self.journal.folder.parents[1]
        own = self.checkpoints.relative_to(home) == Path(current.checkpoint or "").parent
        expected = (self.latest,) if self.finished else (self.latest, self.served)
        return current.version in expected or (own and self.latest == current.parent)

    def wave(self, mode: str, number: int) -> Wave | None:
        """Return a recorded wave; None if it is not recorded."""
        waves = self.journal.waves_of(mode, number)
        return next((wave for wave in waves if wave.policy == self.policy), None)


def _encode(event: AnyEvent) -> bytes:
    return json.dumps(event.model_dump(), separators=(",", ":")).encode() + b"\n"


def read_journals(runs: Path, policy: str) -> list[PolicyJournal]:
    """Return what each run tells of a policy; one that cannot be read is skipped with a warning."""
    journals = []
    for file in sorted(runs.glob(f"*/{JOURNAL}")):
        try:
            journal = Journal.load(file.parent)
        except BadJournal as error:
            _logger.warning("ltrain: run '%s' is skipped. %s", file.parent.name, error)
            continue
        if journal is not None and policy in journal.policies:
            journals.append(journal.of(policy))
    return journals


def open_journal(
    runs: Path, name: str, *, recipe: str, updates: int, current: Sequence[PolicyVersion]
) -> Journal:
    """Return the journal of the last run named `name` if it can continue, else of a new run.

    A run continues while it lacks some of its `updates`. It does not if its recipe has changed,
    because its waves would not be comparable, or if another version was made current since. A run
    that ended before its first wave leaves its name to the new one.

    Args:
        recipe: digest of the recipe.
        updates: number of its updates.
        current: the current version of each trained policy.

    Raises:
        BadJournal: when the last run's journal cannot be read.
    """
    last, next_name = last_and_next_name(runs, name)
    journal = Journal.load(runs / path_component(last)) if last else None
    starts = {version.policy: version.version for version in current}
    if journal is not None and (journal.recipe, set(journal.policies)) == (recipe, set(starts)):
        lacks_updates = not journal.finished or journal.updates < updates
        others = [each for each in current if not journal.of(each.policy).leads_to(each)]
        if lacks_updates and not others:
            journal.finished = False
            return journal
        if lacks_updates and journal.has_begun:
            [other, *_] = others
            _logger.warning(
                "ltrain: run '%s' does not continue from v%d, because v%d of '%s' is current; "
                "run '%s' starts from it",
                *(journal.run, journal.of(other.policy).latest, other.version, other.policy),
                next_name,
            )
    if journal is not None and not journal.has_begun:
        next_name = journal.run
    elif journal is not None and journal.recipe != recipe and not journal.finished:
        versions = ", ".join(f"v{version}" for version in starts.values())
        _logger.warning(
            "ltrain: run '%s' is unfinished and does not continue, because its recipe has changed; "
            "run '%s' starts from %s",
            *(journal.run, next_name, versions),
        )
    journal = Journal(
        folder=runs / path_component(next_name), run=next_name, recipe=recipe, policies=starts
    )
    journal.start()
    return journal
