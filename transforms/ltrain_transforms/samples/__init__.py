"""Transitions -> samples: the token rows that the trainer reads."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_transforms.samples import row_filters, split_reasons
    from ltrain_transforms.samples.from_transitions import COLUMNS, count_savings, samples
    from ltrain_transforms.samples.ragged import Ragged
    from ltrain_transforms.samples.rows import Turns, merge_turns
    from ltrain_transforms.samples.split_reasons import SplitReason

open_face(__name__)
