"""The state builder's input and output of one call, and frames made from `states`."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import polars as pl

from ltrain_transforms.states.values import combine_hashes, variable_hash


def snapshot(states: pl.DataFrame, t: int) -> pl.DataFrame:
    """Return the last write of each variable up to step `t`.

    Step t is the state that call t found (Agent Lightning, equation 1); the step after the last
    call is the final state.
    """
    writes = states.filter(pl.col("t") <= t).sort("execution_id", "t", maintain_order=True)
    key = ["execution_id", "variable"]
    return writes.unique(key, keep="last", maintain_order=True).sort(key)


def digest(
    states: pl.DataFrame, calls: pl.DataFrame, variables: Collection[str] | None = None
) -> pl.DataFrame:
    """Return `call_id` and `state_digest`: a hash of some variables as each call found them.

    It depends only on the variables and their values, so calls of other executions in the same
    state have the same digest. It is null where none of the variables has a value yet.

    Args:
        calls: a frame with `execution_id`, `call_id` and `seq`.
        variables: their names; None: all of them.
    """
    names = sorted(set(states["variable"] if variables is None else variables))
    at_calls = calls.select("execution_id", "call_id", "seq").sort("seq")
    columns = [f"digest {number}" for number in range(len(names))]
    for variable, column in zip(names, columns, strict=True):
        writes = states.filter(pl.col("variable") == variable).sort("t", maintain_order=True)
        last = writes.unique(["execution_id", "t"], keep="last", maintain_order=True)
        at_calls = at_calls.join_asof(
            last.select("execution_id", pl.col("t").alias("seq"), pl.col("digest").alias(column)),
            on="seq",
            by="execution_id",
            check_sortedness=False,
        )
    distinct = at_calls.select(columns).unique()
    hashes = [_state_digest(names, row) for row in distinct.iter_rows()]
    digests = distinct.with_columns(state_digest=pl.Series(hashes, dtype=pl.String))
    if not columns:
        return at_calls.select("call_id", state_digest=pl.lit(None, pl.String))
    joined = at_calls.join(digests, columns, "left", nulls_equal=True, maintain_order="left")
    return joined.select("call_id", "state_digest")


def _state_digest(variables: Sequence[str], digests: Sequence[str | None]) -> str | None:
    pairs = zip(variables, digests, strict=True)
    hashes = [variable_hash(variable, each) for variable, each in pairs if each is not None]
    return combine_hashes(hashes) if hashes else None


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
    delivered: bool | None


class Observation(NamedTuple):
    """The observation and the action of one call: a row of `OBSERVATIONS`."""

    call_id: str
    reads: list[str]
    state_digest: str | None
    action: str | None
    turn_index: int
