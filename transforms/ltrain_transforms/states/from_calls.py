"""Calls -> states: each write of a semantic variable, and what each call read and did.

A state is the semantic variables and their values at a step (Agent Lightning, section 3.1,
equation 1). The input and the output of every call are such variables (equation 4).
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, groupby
from operator import itemgetter

import polars as pl
import pyarrow as pa

from ltrain_transforms.calls import DropRow, span_errors
from ltrain_transforms.states.snapshots import CallRecord, Observation, digest, snapshot
from ltrain_transforms.states.variables import Row
from ltrain_transforms.states.walk import StateBuilder
from ltrain_transforms.tables import STATES
from ltrain_transforms.traces import FAILURES

OBSERVATIONS = pl.Schema(
    {
        "call_id": pl.String(),
        "reads": pl.List(pl.String()),
        "state_digest": pl.String(),
        "action": pl.String(),
        "turn_index": pl.Int32(),
    }
)
"""One row for each call of a model, a tool or a retriever.

`reads`: the variables in its input. `state_digest`: a hash of the graph's state, else of the input.
`action`: `answer`, `tool_request` or `context`, for an LLM call. `turn_index`: how many calls of
its kind, agent and node ran before it, one after the other.
"""

_WITHOUT_READS = pl.Schema({name: dtype for name, dtype in OBSERVATIONS.items() if name != "reads"})

__all__ = ["OBSERVATIONS", "digest", "snapshot", "states"]


def states(calls: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return three frames made from `calls`: `STATES`, `OBSERVATIONS`, and `DROPS` for failures."""
    ordered = calls.select(CallRecord._fields).sort("execution_id", "seq")
    records = map(CallRecord._make, zip(*(column.to_list() for column in ordered), strict=True))
    rows: list[Row] = []
    observations: list[Observation] = []
    failures: list[DropRow] = []
    for execution, own in groupby(records, key=itemgetter(0)):
        try:
            builder = StateBuilder(list(own))  # one at a time: parsed values are freed after it
            builder.build()
        # broad: agents write inputs and outputs of any shape; an execution that raises becomes a
        # drop, and the others are read
        except FAILURES as error:
            failures.append(span_errors.states_drop(execution, error))
            continue
        rows += sorted(builder.variables.rows, key=lambda row: row[1])
        observations += builder.observations.values()
    return (
        _frame(rows, STATES.schema),
        _observations(observations),
        span_errors.drops_frame(failures),
    )


def _frame(rows: Sequence[tuple[object, ...]], schema: pl.Schema) -> pl.DataFrame:
    # column by column: Polars takes twice as long for a list of rows
    columns = zip(*rows, strict=True) if rows else ([] for _ in schema)
    return pl.DataFrame(dict(zip(schema, map(list, columns), strict=True)), schema)


def _observations(rows: Sequence[Observation]) -> pl.DataFrame:
    reads = [row.reads for row in rows]
    # not by `pa.array`, which imports pandas
    flat = _arrow(chain.from_iterable(reads), pl.String())
    ends = _arrow(accumulate(map(len, reads), initial=0), pl.Int64())
    # Polars makes a series of each inner list, which costs more than everything else here
    lists = pl.Series("reads", pa.LargeListArray.from_arrays(ends, flat), pl.List(pl.String))
    others = _frame([(row[0], *row[2:]) for row in rows], _WITHOUT_READS)
    return others.insert_column(1, lists)


def _arrow(values: Iterable[object], dtype: pl.DataType) -> pa.Array:
    return pl.Series(list(values), dtype=dtype).to_arrow(compat_level=pl.CompatLevel.oldest())
