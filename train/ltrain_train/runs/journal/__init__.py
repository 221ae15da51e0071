"""The journal of a run: events on disk, the waves that they tell of, and the waves' alarms."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.runs.journal.alarms import (
        new_alarms,
        record_alarms,
        update_alarms,
        wave_alarms,
    )
    from ltrain_train.runs.journal.journal import (
        Journal,
        PolicyJournal,
        open_journal,
        read_journals,
    )
    from ltrain_train.runs.journal.updates import read_updates
    from ltrain_train.runs.journal.wave import Wave
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
        Stopped,
        Trained,
    )

open_face(__name__)
