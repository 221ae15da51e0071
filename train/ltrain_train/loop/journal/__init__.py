"""The journal of a run: events on disk, and the waves that they tell of."""

from ltrain_train.loop.journal.journal import (
    Journal,
    PolicyJournal,
    open_journal,
    read_journals,
)
from ltrain_train.loop.journal.wave import Wave
from ltrain_transforms.run_events import (
    Completed,
    Dispatched,
    Evaluated,
    Finished,
    Group,
    Phase,
    PolicyScore,
    Published,
    Repeated,
    Served,
    Trained,
)

__all__ = [
    "Completed",
    "Dispatched",
    "Evaluated",
    "Finished",
    "Group",
    "Journal",
    "Phase",
    "PolicyJournal",
    "PolicyScore",
    "Published",
    "Repeated",
    "Served",
    "Trained",
    "Wave",
    "open_journal",
    "read_journals",
]
