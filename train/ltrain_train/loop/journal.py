"""What a run has done, on disk: a killed run goes on from here, a finished one is history.

The file is replaced whole after every validation and update, so it is never half written.
"""

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from ltrain_instrument.private import make_private
from ltrain_train.rollout.runs import last_and_next_name


@dataclass(slots=True, kw_only=True)
class Wave:
    """One dispatch of tasks and what came of it."""

    mode: str
    wave: int
    version: int
    """The policy version that was sampled."""
    rollouts: int
    outcomes: dict[str, int]
    evaluations: dict[str, float]
    """Mean of each evaluation over the rollouts."""
    rules: dict[str, float] = field(default_factory=dict)
    """Mean over the rollouts of what each rule gave."""
    dataset: str | None = None
    published: int | None = None
    """The version that training on it gave, or None where it was not trained on."""
    samples: int = 0
    tokens: int = 0
    drops: dict[str, int] = field(default_factory=dict)
    alarms: list[str] = field(default_factory=list)
    """Which drops go with low reward, in a sentence each."""
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall seconds by phase."""

    @property
    def scores(self) -> dict[str, float]:
        """What the evaluations and the rules gave, by name."""
        return self.evaluations | self.rules


@dataclass(slots=True, kw_only=True)
class Journal:
    folder: Path
    run: str
    recipe: str
    """Digest of the recipe."""
    policy: str
    base: int
    """The policy version that training starts from."""
    finished: bool = False
    waves: list[Wave] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.folder / "journal.json"

    @property
    def updates(self) -> int:
        """Training waves that are done, those that taught nothing included."""
        return sum(wave.mode == "train" for wave in self.waves)

    @property
    def trained(self) -> int:
        """Training waves that gave a version."""
        return sum(wave.published is not None for wave in self.waves)

    @property
    def checkpoint(self) -> Path:
        """Where the learner is kept after what it was trained on so far."""
        return self.folder / "checkpoints" / str(self.trained)

    @property
    def next_checkpoint(self) -> Path:
        return self.checkpoint.with_name(str(self.trained + 1))

    def wave(self, mode: str, number: int) -> Wave | None:
        return next((w for w in self.waves if (w.mode, w.wave) == (mode, number)), None)

    def add(self, wave: Wave) -> None:
        self.waves.append(wave)
        self.save()

    def prune(self) -> None:
        """Remove checkpoints that nothing will go on from."""
        for old in self.folder.glob("checkpoints/*"):
            if old.name.isdigit() and int(old.name) < self.trained:
                shutil.rmtree(old)

    def finish(self) -> None:
        self.finished = True
        self.save()

    def save(self) -> None:
        make_private(self.folder)
        content = {key: value for key, value in asdict(self).items() if key != "folder"}
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(content, indent=1))
        os.replace(part, self.path)

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Give the journal in `folder`, or None where there is none."""
        try:
            content: dict[str, Any] = json.loads((folder / "journal.json").read_text())
        except FileNotFoundError:
            return None
        waves = [Wave(**wave) for wave in content.pop("waves")]
        return cls(folder=folder, waves=waves, **content)


def open_journal(runs: Path, name: str, *, recipe: str, policy: str, base: int) -> Journal:
    """Go on with the last run called `name` where it is unfinished; else begin the next one.

    A run whose recipe has changed is left as it is: its numbers would mean two things.
    """
    last, next_name = last_and_next_name(runs, name)
    journal = Journal.load(runs / last) if last else None
    if journal is not None and not journal.finished and journal.recipe == recipe:
        return journal
    journal = Journal(
        folder=runs / next_name, run=next_name, recipe=recipe, policy=policy, base=base
    )
    journal.save()
    return journal
