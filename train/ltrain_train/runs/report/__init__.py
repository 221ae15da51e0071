"""The printed report of a run: its start, its progress, its waves, its result."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.runs.report.progress import Progress, RolloutProgress
    from ltrain_train.runs.report.run_report import (
        describe_places,
        describe_start,
        held_out_scores,
        idle_share,
        next_commands,
        test_scores,
        time_left,
        time_spent,
    )
    from ltrain_train.runs.report.timeline import (
        BETWEEN,
        END,
        START,
        Phases,
        split_time,
    )
    from ltrain_train.runs.report.wave_rows import WaveRows, wave_notes

open_face(__name__)
