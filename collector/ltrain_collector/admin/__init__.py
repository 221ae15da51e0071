"""Maintenance of a store: status, backup, restore, prune, and the commands for it."""

from ltrain_collector.admin.backup import backup, describe_records, restore
from ltrain_collector.admin.maintenance import PruneFilter, days_ago, prune, store_status
from ltrain_collector.admin.query_output import (
    format_report,
    ignore_closed_pipe,
    parse_parameters,
    write_result,
)
from ltrain_collector.admin.trace_list import TraceFilter, list_traces

__all__ = [
    "PruneFilter",
    "TraceFilter",
    "backup",
    "days_ago",
    "describe_records",
    "format_report",
    "ignore_closed_pipe",
    "list_traces",
    "parse_parameters",
    "prune",
    "restore",
    "store_status",
    "write_result",
]
