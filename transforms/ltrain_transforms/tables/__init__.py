"""The tables: name, type and meaning of each column.

Documentation, empty frames and checks are made from these declarations; no other module has a
schema. Times are nanoseconds since the epoch. `execution_id` is the key of every table: the
rollout's id and attempt, `<rollout>.<attempt>`, else the id of a session or a trace.
"""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_transforms.tables.calls import (
        CALLS,
        STATES,
        CallColumn,
        CellSource,
        columns_from,
        lacks_token_ids,
        taken_choice,
    )
    from ltrain_transforms.tables.column import STRING, Column, Table, typed_rows
    from ltrain_transforms.tables.executions import EXECUTION_CONTENTS, EXECUTIONS
    from ltrain_transforms.tables.registry import TABLES
    from ltrain_transforms.tables.rewards import (
        DERIVED_COLUMNS,
        EVALUATIONS,
        EXEMPLAR,
        GATE_COLUMNS,
        GROUP_STATS,
        REWARDS,
        RULE_COLUMNS,
        SIGNALS,
    )
    from ltrain_transforms.tables.samples import DROPS, OTHER_SPAN, SAMPLES, TRANSITIONS
    from ltrain_transforms.tables.spans import LOGS, SPANS

open_face(__name__)
