"""Journals for tests."""

from pathlib import Path
from typing import Any

from ltrain_train.loop.journal import Evaluated, Journal, PolicyScore, Published, Trained, Wave


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
