"""The tables: name, type and meaning of each column.

Documentation, empty frames and checks are made from these declarations; no other module has a
schema. Times are nanoseconds since the epoch. `execution_id` is the key of every table: the
rollout's id and attempt, `<rollout>.<attempt>`, else the id of a session or a trace.
"""

from ltrain_transforms.tables.calls import CALLS, STATES, CallColumn, CellSource, columns_from
from ltrain_transforms.tables.column import FLOAT, INTEGER, STRING, STRINGS, Column, Table
from ltrain_transforms.tables.executions import EXECUTION_CONTENTS, EXECUTIONS
from ltrain_transforms.tables.rewards import EVALUATIONS, GROUP_STATS, REWARDS, SIGNALS
from ltrain_transforms.tables.samples import DROPS, OTHER_SPAN, SAMPLES, TRANSITIONS
from ltrain_transforms.tables.spans import LOGS, SPANS

TABLES = (CALLS, EXECUTIONS, STATES, REWARDS, TRANSITIONS, SAMPLES, DROPS)
"""The tables of a dataset."""

__all__ = [
    "CALLS",
    "DROPS",
    "EVALUATIONS",
    "EXECUTIONS",
    "EXECUTION_CONTENTS",
    "FLOAT",
    "GROUP_STATS",
    "INTEGER",
    "LOGS",
    "OTHER_SPAN",
    "REWARDS",
    "SAMPLES",
    "SIGNALS",
    "SPANS",
    "STATES",
    "STRING",
    "STRINGS",
    "TABLES",
    "TRANSITIONS",
    "CallColumn",
    "CellSource",
    "Column",
    "Table",
    "columns_from",
]
