"""A call as the walk over an execution needs it."""

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
