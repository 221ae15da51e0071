"""The journal of a run on disk: its waves, from which a killed run continues.

The file is replaced atomically after every validation and every update.
"""

import json
import logging
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from ltrain_instrument.files import path_component, write_file
from ltrain_train.errors import BadJournal
from ltrain_train.rollout import last_and_next_name
from ltrain_transforms.policy_file import PolicyVersion

_logger = logging.getLogger("ltrain.loop")


@dataclass(slots=True, kw_only=True)
class Wave:
    """One wave of rollouts and its results."""

    mode: str
    wave: int
    version: int
    """The sampled policy version."""
    rollouts: int
    outcomes: dict[str, int]
    evaluations: dict[str, float]
    """Mean of each evaluation over the rollouts."""
    score: float | None = None
    """The evaluations that the recipe rewards, by their weights; None without any."""
    tasks: dict[str, float] = field(default_factory=dict)
    """The score of each task, the mean over its rollouts."""
    drawn: int = 0
    """Tasks of a training wave."""
    rules: dict[str, float] = field(default_factory=dict)
    """Mean of each rule's rewards over the rollouts."""
    dataset: str | None = None
    """Id of the dataset that was built from the wave."""
    published: int | None = None
    """The version that was trained on the wave; None if there was none."""
    samples: int = 0
    """Rows that the published version was trained on."""
    tokens: int = 0
    """Tokens of these rows."""
    drops: dict[str, int] = field(default_factory=dict)
    failures: str = ""
    """Why rollouts failed: the commonest reason, an example and its log; '' if none failed."""
    alarms: list[str] = field(default_factory=list)
    """One sentence for each kind of drop that correlates with low reward, and for each warning of
    the learner."""
    undone: int = 0
    """Optimizer steps that were undone because a number was not finite."""
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall seconds by phase."""

    @property
    def scores(self) -> dict[str, float]:
        """The means of the evaluations and the rules, by name."""
        return self.evaluations | self.rules


@dataclass(slots=True, kw_only=True)
class Journal:
    """The waves of one run, and the file that records them."""

    folder: Path
    run: str
    recipe: str
    """Digest of the recipe."""
    policy: str
    base: int
    """The policy version that training starts from."""
    finished: bool = False
    failed_at: int = 0
    """When (Unix ns) every rollout of the next wave had failed: its earlier attempts do not count.
    0 if they have not all failed."""
    waves: list[Wave] = field(default_factory=list)

    @property
    def path(self) -> Path:
        """The journal's file."""
        return self.folder / "journal.json"

    @property
    def updates(self) -> int:
        """Number of finished training waves, those without a new version included."""
        return sum(wave.mode == "train" for wave in self.waves)

    @property
    def latest(self) -> int:
        """The latest version of the run: `base` if it has published none."""
        published = (wave.published for wave in reversed(self.waves))
        return next((version for version in published if version is not None), self.base)

    def leads_to(self, current: PolicyVersion) -> bool:
        """Return whether `current` is the run's latest version, or one that the run made from it.

        A run that was killed between a publication and its journal has published the latter.
        """
        home = self.folder.parents[1]
        own = self.checkpoints.relative_to(home) == Path(current.checkpoint or "").parent
        return self.latest == current.version or (own and self.latest == current.parent)

    @property
    def checkpoints(self) -> Path:
        """Folder of the learner's checkpoints, each named after the version it belongs to."""
        return self.folder / "checkpoints"

    def wave(self, mode: str, number: int) -> Wave | None:
        """Return a recorded wave; None if it is not recorded."""
        return next((w for w in self.waves if (w.mode, w.wave) == (mode, number)), None)

    def add(self, wave: Wave) -> None:
        """Record a wave and save the journal."""
        self.waves.append(wave)
        self.failed_at = 0
        self.save()

    def repeat_wave(self) -> None:
        """Record that every rollout of the next wave failed, and save the journal."""
        self.failed_at = time.time_ns()
        self.save()

    def finish(self) -> None:
        """Mark the run as finished and save the journal."""
        self.finished = True
        self.save()

    def save(self) -> None:
        """Replace the journal's file atomically."""
        content = {key: value for key, value in asdict(self).items() if key != "folder"}
        write_file(self.path, json.dumps(content, indent=1))

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Return the journal in `folder`; None if there is none.

        Raises:
            BadJournal: when it cannot be read.
        """
        path = folder / "journal.json"
        try:
            content: dict[str, Any] = json.loads(path.read_text())
            waves = [Wave(**wave) for wave in content.pop("waves")]
            return cls(folder=folder, waves=waves, **content)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadJournal(
                f"The journal '{path}' cannot be read ({type(error).__name__}: {error}); another "
                "version of ltrain may have written it. Use that version, or rename the file: "
                "then the run is not continued, and its scores do not count."
            ) from error


def read_journals(runs: Path, policy: str) -> list[Journal]:
    """Return the journals of a policy's runs; one that cannot be read is skipped with a warning."""
    journals = []
    for file in sorted(runs.glob("*/journal.json")):
        try:
            journals.append(Journal.load(file.parent))
        except BadJournal as error:
            _logger.warning("ltrain: run '%s' is skipped. %s", file.parent.name, error)
    return [journal for journal in journals if journal is not None and journal.policy == policy]


def open_journal(
    runs: Path, name: str, *, recipe: str, updates: int, current: PolicyVersion
) -> Journal:
    """Return the journal of the last run named `name` if it can continue, else of a new run.

    A run continues while it lacks some of its `updates`. It does not if its recipe has changed,
    because its waves would not be comparable, or if another version was made current since.

    Args:
        current: the current version of the trained policy.

    Raises:
        BadJournal: when the last run's journal cannot be read.
    """
    last, next_name = last_and_next_name(runs, name)
    journal = Journal.load(runs / path_component(last)) if last else None
    if journal is not None and journal.recipe == recipe and journal.policy == current.policy:
        lacks_updates = not journal.finished or journal.updates < updates
        if lacks_updates and journal.leads_to(current):
            journal.finished = False
            return journal
        if lacks_updates:
            _logger.warning(
                "ltrain: run '%s' does not continue from v%d, because v%d of '%s' is current; "
                "run '%s' starts from it",
                *(journal.run, journal.latest, current.version, current.policy, next_name),
            )
    if journal is not None and journal.recipe != recipe and not journal.finished:
        _logger.warning(
            "ltrain: run '%s' is unfinished and does not continue, because its recipe has changed; "
            "run '%s' starts from v%d",
            *(journal.run, next_name, current.version),
        )
    journal = Journal(
        folder=runs / path_component(next_name),
        run=next_name,
        recipe=recipe,
        policy=current.policy,
        base=current.version,
    )
    journal.save()
    return journal
