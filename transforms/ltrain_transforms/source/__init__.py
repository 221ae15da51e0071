"""Which executions and spans a recipe reads from the store, and whether all have arrived."""

from ltrain_transforms.source import trained_calls
from ltrain_transforms.source.batches import SPANS_PER_BATCH, plan_batches
from ltrain_transforms.source.call_keys import related_traces
from ltrain_transforms.source.completeness import wait_complete
from ltrain_transforms.source.empty_selection import empty_selection, explain_query_errors
from ltrain_transforms.source.reader import (
    ExecutionBatch,
    Selection,
    count_ended,
    list_rollouts,
    read_first_spans,
    read_spans,
    read_spans_state,
    runner_condition,
    spans_query,
    watermark,
)
from ltrain_transforms.source.trained_calls import (
    AGENT_OUTCOMES,
    concat_table,
    has_withheld_spans,
    is_trained,
    select_executions,
    to_drops,
    trained_policy,
)
from ltrain_transforms.source.waves import WaveStates, are_unchanged, has_late_spans, read_waves

__all__ = [
    "AGENT_OUTCOMES",
    "SPANS_PER_BATCH",
    "ExecutionBatch",
    "Selection",
    "WaveStates",
    "are_unchanged",
    "concat_table",
    "count_ended",
    "empty_selection",
    "explain_query_errors",
    "has_late_spans",
    "has_withheld_spans",
    "is_trained",
    "list_rollouts",
    "plan_batches",
    "read_first_spans",
    "read_spans",
    "read_spans_state",
    "read_waves",
    "related_traces",
    "runner_condition",
    "select_executions",
    "spans_query",
    "to_drops",
    "trained_calls",
    "trained_policy",
    "wait_complete",
    "watermark",
]
