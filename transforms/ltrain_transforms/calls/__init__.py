"""Spans -> calls and executions: each component invocation once."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_transforms.calls import membership, span_errors
    from ltrain_transforms.calls.call import LOG_DELAY, SLACK
    from ltrain_transforms.calls.executions import (
        CONTAINERS,
        LATE,
        executions,
        idle_cutoff,
        longest_chain_members,
    )
    from ltrain_transforms.calls.from_spans import STATE_COLUMNS, calls
    from ltrain_transforms.calls.membership import resolve_logs, resolve_spans
    from ltrain_transforms.calls.span_errors import DropRow
    from ltrain_transforms.calls.unknown_dialects import (
        REMEDY,
        UnknownWriter,
        newest_spans,
        unknown_attributes,
        unknown_spans,
    )

open_face(__name__)
