"""Transitions -> samples: the token rows that the trainer reads."""

from ltrain_transforms.samples import row_filters, split_reasons
from ltrain_transforms.samples.from_transitions import COLUMNS, count_savings, samples
from ltrain_transforms.samples.row_filters import taken_choice
from ltrain_transforms.samples.split_reasons import SplitReason

__all__ = [
    "COLUMNS",
    "SplitReason",
    "count_savings",
    "row_filters",
    "samples",
    "split_reasons",
    "taken_choice",
]
