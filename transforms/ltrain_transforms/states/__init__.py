"""Calls -> states: which semantic variable was written when, who read it, what each call did.

Agent Lightning, section 3.1: a state is the semantic variables and their values at a step
(equation 1); the input and the output of every call are among them (equation 4).
"""

from collections.abc import Sequence
from itertools import accumulate, chain, groupby
from operator import itemgetter

import polars as pl
import pyarrow as pa

from ltrain_transforms import faults
from ltrain_transforms.faults import Fault
from ltrain_transforms.states.snapshots import digest, snapshot
from ltrain_transforms.states.step import Saw, Step
from ltrain_transforms.states.variables import Row
from ltrain_transforms.states.walk import Walk
from ltrain_transforms.tables import STATES
from ltrain_transforms.untrusted import FAILURES

SEEN = pl.Schema(
    {
        "call_id": pl.String(),
        "reads": pl.List(pl.String()),
        "state_digest": pl.String(),
        "action": pl.String(),
        "turn_index": pl.Int32(),
    }
)
"""What each call of a model, a tool, a retriever saw and did: the variables in its input; a hash of
the graph's state, else of the input itself; `answer`, `tool_request` or `context` of an LLM call;
how many calls of its kind, agent and node ran before it one after the other."""

_WITHOUT_READS = pl.Schema({name: dtype for name, dtype in SEEN.items() if name != "reads"})

__all__ = ["SEEN", "digest", "snapshot", "states"]


def states(calls: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return `states` and `SEEN`, made from `calls`, and what could not be read as `DROPS`."""
    ordered = calls.select(Step._fields).sort("execution_id", "seq")
    steps = map(Step._make, zip(*(column.to_list() for column in ordered), strict=True))
    rows: list[Row] = []
    saw: list[Saw] = []
    broken: list[Fault] = []
    for execution, own in groupby(steps, key=itemgetter(0)):
        try:
            walk = Walk(list(own))  # one at a time: what it has parsed is not kept
            walk.walk()
        # broad: inputs and outputs are an agent's, of any shape; an execution whose states cannot
        # be read has none, which is a drop, and the others are walked
        except FAILURES as error:
            broken.append(faults.of_states(execution, error))
            continue
        rows += sorted(walk.variables.rows, key=lambda row: row[1])
        saw += walk.saw.values()
    return _frame(rows, STATES.schema), _seen(saw), faults.drops(broken)


def _frame(rows: Sequence[tuple[object, ...]], schema: pl.Schema) -> pl.DataFrame:
    # column by column: polars takes twice as long over a list of rows
    columns = zip(*rows, strict=True) if rows else ([] for _ in schema)
    return pl.DataFrame(dict(zip(schema, map(list, columns), strict=True)), schema)


def _seen(saw: Sequence[Saw]) -> pl.DataFrame:
    reads = [each.reads for each in saw]
    flat = pa.array(list(chain.from_iterable(reads)), pa.large_string())
    ends = pa.array(list(accumulate(map(len, reads), initial=0)), pa.int64())
    # polars makes a series of each inner list, which costs more than all the rest
    lists = pl.Series("reads", pa.LargeListArray.from_arrays(ends, flat), pl.List(pl.String))
    others = _frame([(each[0], *each[2:]) for each in saw], _WITHOUT_READS)
    return others.insert_column(1, lists)
