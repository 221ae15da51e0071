"""Journals for tests."""

from pathlib import Path
from typing import Any

from ltrain_train.runs.journal import (
    Evaluated,
    Journal,
    Phase,
    PolicyScore,
    Published,
    Trained,
    Wave,
)

VALIDATION = Wave(
    policy="sql",
    mode="val",
    wave=0,
    version=0,
    rollouts=96,
    outcomes={"ok": 95, "timeout": 1},
    evaluations={"executed": 0.7, "reward": 0.417},
    temperature=0.0,
    phases=(Phase("generate", 10.0, 16.0),),
)
TRAINED = Wave(
    policy="sql",
    mode="train",
    wave=0,
    version=0,
    rollouts=96,
    outcomes={"ok": 96},
    evaluations={"executed": 0.65, "reward": 0.3},
    rules={"tool-failed": -0.09},
    published=1,
    samples=52,
    metrics={"drift_k3": 0.00123},
    phases=(
        Phase("generate", 16.0, 28.0),
        Phase("settle", 28.0, 28.5),
        Phase("build", 28.5, 29.0),
        Phase("train", 29.0, 59.0),
        Phase("load", 59.0, 61.0),
    ),
)


def new_journal(folder: Path, run: str = "demo", *, base: int = 0) -> Journal:
    """Write the journal of a run that has only started."""
    journal = Journal(folder=folder, run=run, recipe="r", policies={"sql": base})
    journal.start()
    return journal


def record_wave(journal: Journal, wave: Wave) -> None:
    """Add the events of a wave that has ended."""
    journal.add(
        Evaluated(
            mode=wave.mode,
            wave=wave.wave,
            rollouts=wave.rollouts,
            outcomes=wave.outcomes,
            evaluations=wave.evaluations,
            policies={
                wave.policy: PolicyScore(version=wave.version, score=wave.score, tasks=wave.tasks)
            },
        )
    )
    if wave.mode == "train":
        changes = wave.published is not None
        journal.add(Trained(policy=wave.policy, wave=wave.wave, dataset="d", changed=changes))
    if wave.published is not None:
        journal.add(Published(policy=wave.policy, wave=wave.wave, version=wave.published))


def changed(wave: Wave, /, **fields: Any) -> Wave:
    """Return the wave with other values of some fields."""
    return wave.model_copy(update=fields)
