"""Which executions and spans a recipe reads from the store, and whether all have arrived."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_transforms.source import trained_calls
    from ltrain_transforms.source.batches import SPANS_PER_BATCH, plan_batches
    from ltrain_transforms.source.call_keys import related_traces
    from ltrain_transforms.source.completeness import wait_complete, wait_ended
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
    from ltrain_transforms.source.traffic import execution_unit, traffic_source
    from ltrain_transforms.source.trained_calls import (
        AGENT_OUTCOMES,
        DEFAULT_SCOPE,
        CreditScope,
        concat_table,
        has_withheld_spans,
        is_trained,
        select_executions,
        to_drops,
        trained_policy,
    )
    from ltrain_transforms.source.unknown_writers import unknown_writers
    from ltrain_transforms.source.waves import WaveStates, are_unchanged, has_late_spans, read_waves

open_face(__name__)
