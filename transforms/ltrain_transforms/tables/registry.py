"""All tables of a dataset."""

from ltrain_transforms.tables.calls import CALLS, STATES
from ltrain_transforms.tables.executions import EXECUTIONS
from ltrain_transforms.tables.rewards import REWARDS
from ltrain_transforms.tables.samples import DROPS, SAMPLES, TRANSITIONS

TABLES = (CALLS, EXECUTIONS, STATES, REWARDS, TRANSITIONS, SAMPLES, DROPS)
"""The tables of a dataset."""
