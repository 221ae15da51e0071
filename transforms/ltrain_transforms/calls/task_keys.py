"""The key of a task where no task id is recorded: a digest of the first request.

Traces of other platforms name no tasks. Executions that answer the same question begin with the
same request: system prompt, messages and tools.
"""

import json
from collections.abc import Iterator
from hashlib import sha256

import polars as pl

from ltrain_transforms.rendering import read_tools
from ltrain_transforms.traces import comparable_history, read_messages

DIGITS = 32
KEYS = pl.Schema({"execution_id": pl.String(), "request_key": pl.String()})
_OWN = ("execution_id", "call_id", "parent_id", "kind", "seq")


def request_keys(calls: pl.DataFrame) -> pl.DataFrame:
    """Return `KEYS` of the executions whose first request is recorded completely.

    A call of a sub-agent is the first request only where its root agent makes no call.
    """
    first = list(_first_requests(calls))
    rows = calls[first].filter(~pl.col("redacted")).select("execution_id", "input", "tools")
    keys = [(execution, _digest(prompt, tools)) for execution, prompt, tools in rows.iter_rows()]
    return pl.DataFrame(keys, KEYS, orient="row").drop_nulls()


def _first_requests(calls: pl.DataFrame) -> Iterator[int]:
    """Yield the index of the first request of each execution."""
    outer = calls.filter(pl.col("kind") != "llm").select(_OWN[:4])
    around = {(execution, call): (parent, kind) for execution, call, parent, kind in outer.rows()}
    best: dict[str, tuple[bool, int, int]] = {}
    for index, (execution, _, parent, kind, seq) in enumerate(calls.select(_OWN).iter_rows()):
        if kind == "llm":
            place = (_is_nested(execution, parent, around), seq, index)
            best[execution] = min(place, best.get(execution, place))
    for _, _, index in best.values():
        yield index


def _is_nested(
    execution: str, parent: str | None, around: dict[tuple[str, str], tuple[str | None, str]]
) -> bool:
    """Return whether two agents are around a call, one inside the other."""
    agents, visited = 0, set[str]()
    while parent is not None and parent not in visited and agents < 2:
        visited.add(parent)
        parent, kind = around.get((execution, parent), (None, ""))
        agents += kind == "agent"
    return agents == 2


def _digest(prompt: str | None, tools: str | None) -> str | None:
    history = comparable_history(read_messages(prompt), thinking=True)
    offered = sorted(json.dumps(tool, sort_keys=True) for tool in read_tools(tools))
    request = json.dumps([history, offered])
    return sha256(request.encode()).hexdigest()[:DIGITS] if history else None
