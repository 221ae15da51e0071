"""The input and the output of the state builder for one call."""

from typing import NamedTuple


class CallRecord(NamedTuple):
    """The columns of `calls` that the state builder reads."""

    execution_id: str
    call_id: str
    seq: int
    kind: str
    name: str | None
    agent: str | None
    node: str | None
    parent_id: str | None
    start: int
    end: int
    input: str | None
    output: str | None
    status: str | None
    error_type: str | None
    tool_call_id: str | None
    requested_by: str | None


class Observation(NamedTuple):
    """What one call observed and did: a row of `OBSERVATIONS`."""

    call_id: str
    reads: list[str]
    state_digest: str | None
    action: str | None
    turn_index: int
