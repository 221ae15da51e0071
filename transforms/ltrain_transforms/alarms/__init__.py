"""Alarms of a run: pure functions from the figures of its waves to sentences with evidence."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_transforms.alarms.alarm import Alarm, AlarmKind
    from ltrain_transforms.alarms.examples import with_examples
    from ltrain_transforms.alarms.figures import (
        DatasetFigures,
        WaveFigures,
        drops_by_execution,
        read_figures,
        read_update,
        rule_means,
    )
    from ltrain_transforms.alarms.kinds import ALARMS, alarms_by_wave, check_names, find_alarms

open_face(__name__)
