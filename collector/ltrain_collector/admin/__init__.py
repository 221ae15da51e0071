"""Maintenance of a store: status, backup, restore, prune, and the commands for it."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_collector.admin.arrivals import (
        OVERLAP,
        Arrival,
        count_arrivals,
        latest_arrival,
        read_arrivals,
    )
    from ltrain_collector.admin.backup import backup, describe_records, restore
    from ltrain_collector.admin.counted_scores import EVALUATED_UNIT_SQL, counted_scores
    from ltrain_collector.admin.maintenance import (
        EXECUTION,
        PruneFilter,
        days_ago,
        prune,
        store_status,
    )
    from ltrain_collector.admin.trace_filter import (
        BY_PERSON,
        EVALUATION_NAME,
        Position,
        TraceFilter,
    )
    from ltrain_collector.admin.trace_list import list_traces
    from ltrain_collector.admin.trace_query import Line, find_line, read_lines

open_face(__name__)
