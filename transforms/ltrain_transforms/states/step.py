"""A call as the walk over an execution needs it, and what the walk says of it."""

from typing import NamedTuple


class Step(NamedTuple):
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


class Saw(NamedTuple):
    """What one call saw, and did."""

    call_id: str
    reads: list[str]
    state_digest: str | None
    action: str | None
    turn_index: int
